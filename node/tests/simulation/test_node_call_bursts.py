"""Many procedure calls at once: the work of a step is bounded (G1)."""

import pytest

from qsync_node.consensus import effects as fx
from qsync_node.server.loop import COMMAND_SESSION
from qsync_node.transactions.console import CONSOLE_PROCEDURE
from qsync_sim.shell import Shell
from qsync_testing.publications import CALL, call
from qsync_testing.worlds import Driven

SESSION = 300
DEFAULT_WORK = 2 * 1024 * 1024


def send_together(
    driven: Driven, shell: Shell, body: bytes, count: int, user: str, session: int = SESSION
) -> list[int]:
    """Send calls that arrive in one turn of the event loop, and return their numbers."""
    syncs = [driven.next_sync() for _ in range(count)]
    shell.step([fx.Request(session, sync, CALL, body, 0, user, None) for sync in syncs])
    return syncs


@pytest.mark.parametrize(
    ("body", "user", "count", "most"),
    [
        (call(CONSOLE_PROCEDURE, "\\help"), "guest", 1_000, 250),
        (call(CONSOLE_PROCEDURE, "os.exit()"), "guest", 1_000, 250),
        (call(CONSOLE_PROCEDURE, "box.info"), "admin", 200, 40),
        (call("box.info"), "admin", 1_000, 250),
    ],
    ids=["help", "unknown line", "line of a query", "query"],
)
def test_calls_of_one_client_do_not_add_up_in_a_step(
    body: bytes, user: str, count: int, most: int
) -> None:
    """4,000 lines of a console took six seconds, so that the leader lost its leadership."""
    driven = Driven(3, work_per_step=DEFAULT_WORK)
    syncs = send_together(driven, driven.leader(), body, count, user)
    assert 0 < len(driven.answers) <= most
    assert driven.run(5_000, lambda: set(syncs) <= set(driven.answers))
    assert {driven.answers[sync].code for sync in syncs} == {0}


def test_call_of_the_admin_port_is_answered_in_its_step() -> None:
    """No session would repeat it."""
    driven = Driven(3, work_per_step=DEFAULT_WORK)
    leader = driven.leader()
    line, info = call(CONSOLE_PROCEDURE, "\\help"), call("box.info")
    requests = [fx.Request(SESSION, driven.next_sync(), CALL, line, 0, "guest", None)] * 1_000
    requests = [one._replace(sync=driven.next_sync()) for one in requests]
    last = fx.Request(COMMAND_SESSION, driven.next_sync(), CALL, info, 0, "admin", None)
    leader.step([*requests, last])
    assert driven.answers[last.sync].code == 0
