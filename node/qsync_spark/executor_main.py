"""The program of a pod of Spark's executors: the image's entry point with argument `executor`.

Spark's own images have a shell script for it, which the Python package lacks. The driver passes all
parameters in the environment; see `resource-managers/kubernetes/docker/.../entrypoint.sh` in Apache
Spark's sources.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_ARGUMENTS = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}


def executor_command(environment: Mapping[str, str], jars: Path) -> list[str]:
    """Return the command of Java. Raises KeyError if the driver omitted a variable."""
    options = sorted(
        (int(name.removeprefix("SPARK_JAVA_OPT_")), value)
        for name, value in environment.items()
        if name.startswith("SPARK_JAVA_OPT_")
    )
    memory = environment["SPARK_EXECUTOR_MEMORY"]
    command = ["java", *(value for _, value in options), f"-Xms{memory}", f"-Xmx{memory}"]
    command += ["-cp", f"{jars}/*", BACKEND]
    for argument, name in _ARGUMENTS.items():
        command += [argument, environment[name]]
    return command


def main() -> None:
    import pyspark  # for the directory of the jars

    home = Path(pyspark.__file__).parent
    os.environ["SPARK_HOME"] = str(home)
    try:
        command = executor_command(os.environ, home / "jars")
    except KeyError as missing:
        sys.exit(f"executor: {missing} is not set: only a Spark driver can start this program")
    os.execvp(command[0], command)
