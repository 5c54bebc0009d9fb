"""The command of an executor's pod."""

from pathlib import Path

import pytest

from qsync_spark.executor_main import BACKEND, executor_command

SAID = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@10.0.0.1:7078",
    "SPARK_EXECUTOR_ID": "1",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.2",
    "SPARK_EXECUTOR_POD_NAME": "run-exec-1",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_MEMORY": "1024m",
    "SPARK_JAVA_OPT_10": "-Dlast",
    "SPARK_JAVA_OPT_2": "-Dfirst",
    "OTHER": "x",
}


def test_the_driver_prints_all_findings() -> None:
    command = executor_command(SAID, Path("/jars"))
    assert command[:7] == ["java", "-Dfirst", "-Dlast", "-Xms1024m", "-Xmx1024m", "-cp", "/jars/*"]
    assert command[7] == BACKEND
    told = dict(zip(command[8::2], command[9::2], strict=True))
    assert told["--driver-url"] == SAID["SPARK_DRIVER_URL"]
    assert told["--podName"] == "run-exec-1"
    assert len(told) == 7


@pytest.mark.parametrize("name", [name for name in SAID if name.startswith("SPARK_EXECUTOR")])
def test_an_omitted_fact_is_missed(name: str) -> None:
    with pytest.raises(KeyError, match=name):
        executor_command({key: SAID[key] for key in SAID if key != name}, Path("/jars"))
