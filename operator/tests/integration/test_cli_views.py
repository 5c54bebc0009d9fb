"""Views of a local cluster on a terminal of 80 columns, in the order of a day's work."""

import json
import os
import pty
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

from qsync_testing.operator.local_clusters import Home
from qsync_testing.paths import EXAMPLES


def on_terminal(home: Home, *arguments: str) -> str:
    """Return the output of a command whose standard output is a terminal."""
    mine, theirs = pty.openpty()
    environment = {**home.environment, "TERM": "xterm", "COLUMNS": "80", "NO_COLOR": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "qsync_cli.main", *arguments],
        env=environment, stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL,
    ):  # fmt: skip
        os.close(theirs)
        found = b""
        while True:
            try:
                piece = os.read(mine, 65536)
            except OSError:  # the command has ended
                break
            found += piece
    os.close(mine)
    return found.decode().replace("\r\n", "\n")


def test_switchover_restart_events_and_logs(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    try:
        home.do("apply", "-f", EXAMPLES / "three-nodes.yaml")
        old = home.leader("orders")["name"]
        said = home.do("switchover", "orders")
        found = re.fullmatch(rf"(orders-\d) leads in term (\d+), after {old}\n", said)
        assert found is not None, said
        leader = home.leader("orders")
        assert found[1] == leader["name"] != old
        said = json.loads(home.do("switchover", "orders", old, "-o", "json"))
        assert (said["leader"], said["previousLeader"]) == (old, leader["name"])
        status = home.do("status", "orders")
        assert "0 ms" not in status
        assert "rolled back" not in status
        assert max(map(len, status.splitlines())) <= 80

        home.do("restart", "orders")
        events = json.loads(home.do("events", "orders", "-o", "json"))
        messages = [(event["reason"], event["message"]) for event in events]
        assert "Restart" in dict(messages)
        assert [pair for pair in pairwise(messages) if pair[0][1] == pair[1][1]] == []
        table = on_terminal(home, "events", "orders")
        assert re.search(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  Normal   Failover  ", table, re.M)
        assert not re.search(" $", table, re.M)
        assert "\x1b" not in table

        assert "\x1b" not in on_terminal(home, "status", "orders")
        logs = on_terminal(home, "logs", "orders", old)
        assert re.search(r"^[-0-9]{10} [:0-9]{8}\.\d{3} leader term=\d+ ", logs, re.M), logs
        assert '"event": "leader"' in home.do("logs", "orders", old)

        text = (EXAMPLES / "three-nodes.yaml").read_text()
        manifest = tmp_path / "less.yaml"
        manifest.write_text(re.sub(".*(total, type|by_customer).*\n", "", text))
        home.do("apply", "-f", manifest)
        for kept in ("field total", "index by_customer"):
            assert f"{kept} of space orders is not in the manifest" in home.do("status", "orders")
    finally:
        home.close()
