"""A Spark job of a local cluster, in a process of its own that ends with this one."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from qsync_cli.failure import Failure, FailureReason, install_command
from qsync_cli.output import progress, step_of

STARTING_SPARK = "starting Spark"


def run_job(  # what differs between jobs
    what: str,
    module: str,
    words: list[str],
    is_quiet: bool,
    done: Callable[[], bool],
    folder: Path | None,
    starts: str = STARTING_SPARK,
) -> None:
    """Run `python -m module` with a progress bar. `done` returns whether its result exists.

    The bar shows `starts` until the job reports its first step. If standard error is no terminal, a
    line replaces the bar.

    Raises:
        Failure: the job failed. The text is its last sentence, or names the file in `folder` with
            its output. Without `folder`, the file is in a new temporary folder.
    """
    if not is_quiet and not sys.stderr.isatty():
        sys.stderr.write(f"{what}: {starts} ...\n")  # instead of a progress bar
    command = [sys.executable, "-m", module, "--progress", "--lifeline", *words]
    said: list[str] = []
    with (
        progress(what, 1.0, is_quiet) as advance,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # held open: the job ends when this process does
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert process.stderr is not None
        advance(0.0, starts)
        for line in process.stderr:
            step = _step_of(line)
            if step is not None:
                advance(*step)
            else:
                said.append(line.strip())
    if not done():
        raise _failure(what, process.returncode, said, folder, is_sparks=starts == STARTING_SPARK)


def _step_of(line: str) -> tuple[float, str] | None:
    """Return the progress of the job from a line of its output, or None for other lines."""
    if not line.startswith("{"):
        return None
    try:
        return step_of(**json.loads(line))
    except (ValueError, TypeError, ZeroDivisionError):
        return None


def _failure(
    what: str, code: int, said: list[str], folder: Path | None, *, is_sparks: bool
) -> Failure:
    """Return the last output of the job in one sentence. A file contains all of it."""
    lines = [line for line in said if line]
    missing = [line for line in lines if "No module named" in line]
    if missing:
        name = missing[-1].rpartition("No module named ")[2].strip("'\"")
        extra = "spark" if is_sparks or name.partition(".")[0] == "pyspark" else "audit"
        return Failure(
            FailureReason.NOT_INSTALLED,
            f"{what} failed: the package {name} is missing; run {install_command(extra)}",
        )
    if any("JAVA_HOME" in line or "JAVA_GATEWAY_EXITED" in line for line in lines):
        return Failure(
            FailureReason.NOT_INSTALLED,
            f"{what} failed: Java 17 or newer is missing; install a JRE, then retry",
        )
    if code == 1 and lines and not any(line.startswith("Traceback") for line in lines):
        return Failure(FailureReason.FAILED, lines[-1])
    folder = folder or Path(tempfile.mkdtemp(prefix="qsync-"))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"failure-{int(time.time())}.log"
    path.write_text("\n".join(said) + "\n")
    return Failure(FailureReason.FAILED, f"{what} failed with exit code {code}: read {path}")
