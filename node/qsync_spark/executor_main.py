"""What a pod of Spark's executors runs: the image's entry point with the argument `executor`.

Spark's own images have a shell script for it, which the Python package does not bring. The driver
says everything by the environment; see `resource-managers/kubernetes/docker/.../entrypoint.sh` in
Apache Spark's sources.
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
    """The command of Java. Raises KeyError when the driver did not say what it has to."""
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
    import pyspark  # where the jars are

    home = Path(pyspark.__file__).parent
    os.environ["SPARK_HOME"] = str(home)
    try:
        command = executor_command(os.environ, home / "jars")
    except KeyError as missing:
        sys.exit(f"executor: {missing} is not set: only a driver starts this")
    os.execvp(command[0], command)
