"""The second container of a voter's pod: keeps the broker of journals running.

    $BROKER_SETTINGS    configuration of the broker, as YAML
    DATA/zone           zone of the broker, from its first start

This process ends only on a stop signal, after the broker has handed its journals over. A broker
that fails is started again after a pause. If the container ended instead, the pod would not be
ready, and Services would no longer lead clients of the database to its member.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import yaml

PAUSE_FIRST_S = 0.5
PAUSE_MAX_S = 30.0
ZONE_MAX = 32
FILE = Path("/tmp/broker.yaml")


def settled_zone(data: Path, name: str, found: str) -> str:
    """Return the zone of a broker, which never changes: other brokers know it by zone and name.

    Args:
        data: directory of its spools.
        name: name of the broker.
        found: zone of its machine, or "" if it is unknown. The broker's name then is its zone.
    """
    file = data / "zone"
    settled = file.read_text() if file.exists() else ""
    if not settled:
        settled = (found or name)[-ZONE_MAX:]
        part = file.with_suffix(".part")
        with part.open("w") as written:
            written.write(settled)
            written.flush()
            os.fsync(written.fileno())
        part.rename(file)
        _sync(data)
    return settled


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class BrokerRunner:
    """Starts a program again whenever it ends, until `stop` is called."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()

    def stop(self, *_: object) -> None:
        """Pass a stop signal on."""
        self._stopping.set()
        if self._process is not None:
            self._process.terminate()

    def run(self) -> int:
        """Keep the program running; after `stop`, return its exit code."""
        pause_s = PAUSE_FIRST_S
        while not self._stopping.is_set():
            started_s = time.monotonic()
            self._process = subprocess.Popen(self._command)
            if self._stopping.is_set():  # the signal arrived before the process existed
                self._process.terminate()
            code = self._process.wait()
            self._process = None
            if self._stopping.is_set():
                return code
            if time.monotonic() - started_s > PAUSE_MAX_S:
                pause_s = PAUSE_FIRST_S
            sys.stderr.write(
                f"qsync-broker: the broker ended with exit code {code}; it starts again in"
                f" {pause_s:g} s\n"
            )
            self._stopping.wait(pause_s)
            pause_s = min(pause_s * 2, PAUSE_MAX_S)
        return 0


def main() -> int:
    settings = yaml.safe_load(os.environ["BROKER_SETTINGS"])
    zone = settled_zone(Path(settings["data_dir"]), settings["name"], settings["zone"] or "")
    FILE.write_text(yaml.safe_dump({**settings, "zone": zone}, sort_keys=False))
    runner = BrokerRunner([sys.executable, "-m", "qsync_broker", str(FILE)])
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, runner.stop)
    return runner.run()
