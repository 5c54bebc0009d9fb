"""An unmodified gazctl against a local cluster with three brokers.

    .venv/bin/python -m e2e.journals.gazctl_commands

Each command of `gazctl journals` runs as a user would run it. A broker is killed in between, and
every byte that gazctl reported as appended must be read again. A second run uses TLS and tokens.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from e2e.journals.peers import build
from e2e.local_cluster import LocalCluster
from qsync_testing.paths import ROOT
from qsync_testing.ports import free_port

MANIFEST = """
apiVersion: qsync.dev/v1alpha1
kind: QsyncCluster
metadata:
  name: journals
spec:
  replicas: 3
  journals:
    enabled: true
    port: {port}
"""
SECURED = """    tls: true
    authKeysFile: {keys}
"""
KEY = "cGVyaGFwcyBhIHNlY3JldCBvZiAzMiBieXRlcyEhISE="
SPECS = """
name: examples/
replication: 3
labels:
  - name: content-type
    value: application/x-ndjson
fragment:
  length: 65536
  compression_codec: SNAPPY
  stores: [{store}]
  refresh_interval: 1m
children:
  - name: examples/one
  - name: examples/two
"""
COMMAND_S = 30.0
CONVERGE_S = 30.0
CACHED = ("--broker.cache.size=16", "--file-root=/")
"""Options with which gazctl reads persisted fragments itself."""

console = Console(highlight=False, soft_wrap=True)


class Gazctl:
    """gazctl, for one broker."""

    def __init__(self, program: Path, address: str, **more: str) -> None:
        self.program = program
        self.environment = {**os.environ, "BROKER_ADDRESS": address, **more}

    def run(
        self, *arguments: str, given: bytes = b"", **more: str
    ) -> subprocess.CompletedProcess[bytes]:
        """Run `gazctl journals`, and return its output and code."""
        return subprocess.run(
            [str(self.program), "journals", *arguments, "--log.level=info"],
            env={**self.environment, **more},
            input=given,
            capture_output=True,
            timeout=COMMAND_S,
            check=False,
        )

    def do(self, *arguments: str, given: bytes = b"", **more: str) -> bytes:
        """Run a command that must succeed, and return its output."""
        done = self.run(*arguments, given=given, **more)
        if done.returncode:
            raise AssertionError(f"gazctl {' '.join(arguments)}: {done.stderr.decode()}")
        return done.stdout + done.stderr

    def read(self, journal: str, *more: str) -> bytes:
        return self.run("read", "-l", f"name={journal}", *more).stdout


def until(what: str, is_done: Callable[[], bool]) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + CONVERGE_S
    while not is_done():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {CONVERGE_S:.0f} s for {what}")
        time.sleep(0.1)  # between two polls: each starts a process


class GazctlSession:
    """The commands, each after those that it depends on."""

    def __init__(self, gazctl: Gazctl, folder: Path, kill: Callable[[str], None]) -> None:
        self.gazctl = gazctl
        self.store = folder / "stores"
        self.specs = folder / "specs.yaml"
        self.kill = kill
        self.content = os.urandom(200_000).hex().encode() + b"\n"

    def listed(self, *more: str) -> dict[str, Any]:
        """Return the listed journals by name."""
        document = json.loads(self.gazctl.do("list", "-o", "json", *more).splitlines()[0])
        return {one["spec"]["name"]: one for one in document["journals"]}

    def members(self, journal: str) -> list[dict[str, str]]:
        found: list[dict[str, str]] = self.listed()[journal]["route"]["members"]
        return found

    def run(self) -> None:
        """Run all commands."""
        for command in (
            self.page,
            self.apply,
            self.append,
            self.edit,
            self.fragments,
            self.killed_broker,
            self.reset_head,
            self.suspend,
            self.store_health,
            self.prune,
            self.delete,
        ):
            console.print(f"  {command.__name__}")
            command()

    def page(self) -> None:
        """Run the commands of docs/journals.md as they are printed there."""
        text = (ROOT / "docs" / "journals.md").read_text()
        (block,) = re.findall(r"```sh\n(export BROKER_ADDRESS=.*?)```", text, re.DOTALL)
        _, _, commands = block.partition("\n")
        self.gazctl.do("list")  # a broker serves
        for command in commands.splitlines():
            deadline = time.monotonic() + CONVERGE_S
            while True:
                environment = self.gazctl.environment
                path = f"{self.gazctl.program.parent}:{environment['PATH']}"
                done = subprocess.run(
                    command,
                    shell=True,
                    cwd=ROOT,
                    env={**environment, "PATH": path},
                    capture_output=True,
                    timeout=COMMAND_S,
                    check=False,
                )
                if not done.returncode:
                    break
                # Right after its creation, a journal has fewer brokers than it wants.
                assert b"INSUFFICIENT" in done.stderr, f"{command}: {done.stderr.decode()}"
                assert time.monotonic() < deadline, command
                time.sleep(0.2)  # between two tries of a command
        listed = self.listed("-l", "prefix=examples/")
        assert sorted(listed) == ["examples/clicks", "examples/views"]
        assert listed["examples/views"]["spec"]["suspend"]["level"] == "FULL"
        self.delete_all()

    def delete_all(self) -> None:
        text = self.gazctl.do("list", "-o", "yaml").decode()
        self.specs.write_text(re.sub(r"(- name: examples/.*)", r"\1\n  delete: true", text))
        self.gazctl.do("apply", "--specs", str(self.specs))
        assert self.listed() == {}

    def apply(self) -> None:
        self.specs.write_text(SPECS.format(store=f"file://{self.store}/"))
        self.gazctl.do("apply", "--specs", str(self.specs))
        assert sorted(self.listed()) == ["examples/one", "examples/two"]
        assert sorted(self.listed("-l", "name=examples/two")) == ["examples/two"]
        assert self.listed("-l", "content-type=text/csv") == {}
        until("three brokers", lambda: len(self.members("examples/one")) == 3)
        assert b"examples/one" in self.gazctl.do("list", "-p", "-r", "--rf", "--stores")
        assert b"compression_codec: SNAPPY" in self.gazctl.do("list", "-o", "yaml")

    def append(self) -> None:
        gazctl = self.gazctl
        gazctl.do("append", "-l", "name=examples/one", given=b"first\n")
        gazctl.do("append", "-l", "name=examples/one", given=self.content)
        lines = b"".join(b'{"n":%d}\n' % number for number in range(1000))
        gazctl.do("append", "-l", "name=examples/two", "--framing=lines", given=lines)
        assert gazctl.read("examples/one") == b"first\n" + self.content
        assert gazctl.read("examples/two") == lines
        assert gazctl.read("examples/one", *CACHED) == b"first\n" + self.content

    def edit(self) -> None:
        self.gazctl.do("edit", "-l", "name=examples/two", EDITOR="sed -i s/65536/32768/")
        assert self.listed()["examples/two"]["spec"]["fragment"]["length"] == "32768"

    def fragments(self) -> None:
        # An append completes the fragment before it, if that is long enough.
        self.gazctl.do("append", "-l", "name=examples/one", given=b"more\n")
        until("a persisted fragment", lambda: any(self.store.rglob("*.sz")))
        assert b"SNAPPY" in self.gazctl.do("fragments", "-l", "name=examples/one")
        found = self.gazctl.read("examples/one", *CACHED)
        assert found == b"first\n" + self.content + b"more\n"

    def is_appended(self) -> bool:
        done = self.gazctl.run("append", "-l", "name=examples/one", given=b"after\n")
        return not done.returncode

    def killed_broker(self) -> None:
        route = self.listed()["examples/one"]["route"]
        self.kill(route["members"][route["primary"]]["suffix"])
        until("an append after the failure", self.is_appended)
        found = self.gazctl.read("examples/one")
        assert found.startswith(b"first\n" + self.content + b"more\n")
        assert found.endswith(b"after\n")

    def reset_head(self) -> None:
        assert b"reset write head" in self.gazctl.do("reset-head", "-l", "name=examples/one")

    def suspend(self) -> None:
        found = self.gazctl.read("examples/one")
        assert b"SUSPENDED" in self.gazctl.do("suspend", "-l", "name=examples/one", "--force")
        assert self.listed()["examples/one"]["spec"]["suspend"]["level"] == "PARTIAL"
        until("an append that resumes", self.is_appended)
        assert self.listed()["examples/one"]["spec"]["suspend"]["level"] == "NONE"
        assert self.gazctl.read("examples/one").startswith(found)

    def store_health(self) -> None:
        assert b"is healthy" in self.gazctl.do("store-health", f"file://{self.store}/")
        assert self.gazctl.run("store-health", "file:///proc/none/").returncode

    def prune(self) -> None:
        before = len(list(self.store.rglob("*.sz")))
        self.gazctl.do("prune", "-l", "name=examples/one", "--dry-run")
        assert len(list(self.store.rglob("*.sz"))) == before

    def delete(self) -> None:
        self.delete_all()


def main() -> int:
    """Run all commands, and return the exit code."""
    for is_secured in (False, True):
        console.print("with TLS and tokens" if is_secured else "without TLS")
        code = run(is_secured)
        if code:
            return code
    console.print("all commands of gazctl work")
    return 0


def run(is_secured: bool) -> int:
    """Run all commands with one cluster, and return the exit code."""
    program = build() / "gazctl"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        port = free_port(6)  # brokers use successive ones
        (folder / "stores").mkdir()
        manifest = folder / "cluster.yaml"
        text, keys = MANIFEST.format(port=port), folder / "keys"
        keys.write_text(KEY)
        manifest.write_text(text + (SECURED.format(keys=keys) if is_secured else ""))
        gazctl = Gazctl(program, f"http://127.0.0.1:{port}")
        if is_secured:
            authority = str(folder / "home" / "journals" / "brokers-tls" / "ca.crt")
            secrets = {"BROKER_TRUSTED_CA_FILE": authority, "BROKER_AUTH_KEYS": KEY}
            gazctl = Gazctl(program, f"https://127.0.0.1:{port}", **secrets)
        cluster = LocalCluster("journals", manifest, folder / "home")

        def kill(broker: str) -> None:
            directory = f"{folder}/home/journals/brokers/{broker}/"
            found = subprocess.run(
                ["pgrep", "-f", f"qsync_broker {directory}"],
                capture_output=True,
                text=True,
                check=True,
            )
            os.kill(int(found.stdout.split()[0]), signal.SIGKILL)

        try:
            cluster.apply()
            GazctlSession(gazctl, folder, kill).run()
        except (AssertionError, RuntimeError, subprocess.TimeoutExpired) as error:
            console.print(f"failed: {error}", markup=False)
            for log in folder.glob("home/journals/**/*.log"):
                place = log.relative_to(folder / "home" / "journals")
                console.print(f"{place}: {log.read_text()[-2000:]}", markup=False)
            return 1
        finally:
            cluster.delete()
    return 0


if __name__ == "__main__":
    sys.exit(main())
