"""A broker that kills itself at a stated point, as often as a campaign orders it.

    python -m qsync_testing.brokers.trapped CONFIG

It runs `qsync_broker`, observed at the points below. Each line of its standard input is an order:
`POINT COUNT DELAY` sends SIGKILL to the process when it reaches the point for the COUNT-th time;
an empty line cancels it. With a negative DELAY, the process ends at the point itself, so that the
step of the core has no effects. Otherwise, it ends DELAY seconds after these were carried out.

point                        reached when
--------------------------   ---------------------------------------------------------------------
append-STATE                 an append enters the state (each one of `qsync_broker.states`)
content-received             a peer has received a part of an append
promise-unflushed            a peer has promised an epoch (J2), and its disk has not answered yet
promise-flushed              the peer replies with its promise
adoption-unflushed, -flushed the same for the adoption of a choice (J4)
confirm-unflushed, -flushed  the same for a proposal (J6)
log-unwritten                the disk thread has written content, and not the record of its commit
log-flushed                  the record is durable, and the core does not know it yet
row-unwritten, row-written   a transaction over a journal's row (J1, J5, J11) begins, or has ended
roll                         a fragment is completed (J9)
upload-begun, upload-ended   a fragment is about to be persisted, or has been
listing-ended                the stores of a journal were listed
copy-asked                   a broker was asked for a part of a fragment (J11)
copy-received                a partial broker has received a part
copy-stored                  a copied fragment is durable
copy-ended                   a partial broker is about to record that it is whole
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from qsync_broker import __main__ as broker_main
from qsync_broker import events as ev
from qsync_broker import messages as msg
from qsync_broker.append import AppendMachine
from qsync_broker.copier import Copier
from qsync_broker.provider import Provider
from qsync_broker.replica import JournalReplica, PeerStream
from qsync_broker.server import BrokerServer
from qsync_broker.states import AppendState
from qsync_broker.storage.log import CommitLog
from qsync_broker.stores import FragmentStores
from qsync_node.format.journals import JournalRow

APPEND_POINTS = {state: f"append-{state.value.replace('_', '-')}" for state in AppendState}
LOSS_POINTS = (APPEND_POINTS[AppendState.RECALL], APPEND_POINTS[AppendState.ACCEPT_LOSS])
"""Points that need lost disks; the campaign loses none."""
CORE_POINTS = (
    *(point for point in APPEND_POINTS.values() if point not in LOSS_POINTS),
    "content-received",
    "promise-unflushed", "promise-flushed",
    "adoption-unflushed", "adoption-flushed",
    "confirm-unflushed", "confirm-flushed",
    "roll",
    "copy-asked", "copy-received", "copy-stored", "copy-ended",
)  # fmt: skip
"""Points in steps of the core."""
SHELL_POINTS = (
    "log-unwritten", "log-flushed",
    "row-unwritten", "row-written",
    "upload-begun", "upload-ended", "listing-ended",
)  # fmt: skip
"""Points outside of steps, at which DELAY counts from the point itself."""
POINTS = (*CORE_POINTS, *SHELL_POINTS)

Replace = Callable[[Any, str, Any], None]


class Trap:
    """The order of the campaign, and its execution."""

    def __init__(self, kill: Callable[[], None]) -> None:
        self._kill = kill
        self._point = ""
        self._left = 0
        self._delay_s = 0.0
        self._is_due = False

    def set(self, order: str) -> None:
        """Take an order over, or cancel the former one."""
        point, count, delay_s = order.split() if order.strip() else ("", "0", "0")
        self._point = ""  # no other thread must meet a part of the order
        self._left, self._delay_s = int(count), float(delay_s)
        self._point = point

    def reached(self, point: str) -> None:
        """Note a point in a step or outside of one."""
        if point != self._point:
            return
        self._left -= 1
        if self._left:
            return
        self._point = ""
        if self._delay_s < 0:
            self._kill()
        elif point in SHELL_POINTS:
            threading.Timer(self._delay_s, self._kill).start()
        else:
            self._is_due = True

    def carried_out(self) -> None:
        """Note that the effects of a step were carried out."""
        if self._is_due:
            self._is_due = False
            if self._delay_s:
                threading.Timer(self._delay_s, self._kill).start()
            else:
                self._kill()


class _ObservedState:
    """The attribute `state` of an append, with a note of each change."""

    def __init__(self, reached: Callable[[str], None]) -> None:
        self._reached = reached

    def __get__(self, append: object, owner: object = None) -> Any:
        return append.__dict__["state"]

    def __set__(self, append: object, state: AppendState) -> None:
        append.__dict__["state"] = state
        self._reached(APPEND_POINTS[state])


def observe_core(reached: Callable[[str], None], replace: Replace = setattr) -> None:
    """Call `reached` with each point in steps of the core.

    Args:
        reached: gets the name of the point.
        replace: sets an attribute of a class.
    """
    accept, handle, reply = JournalReplica.accept, PeerStream._handle, PeerStream.reply
    rolled = JournalReplica.rolled
    received = {
        msg.Content: "content-received",
        msg.Propose: "confirm-unflushed",
        msg.Adopt: "adoption-unflushed",
    }

    def accept_observed(self: Any, stream: Any, prepare: Any, route: Any) -> None:
        before = self.promised
        accept(self, stream, prepare, route)
        if self.promised != before:
            reached("promise-unflushed")

    def handle_observed(self: Any, message: Any, replica: Any) -> None:
        handle(self, message, replica)
        if type(message) in received:
            reached(received[type(message)])

    def reply_observed(self: Any, message: Any) -> None:
        if not self.is_over and isinstance(message, msg.Promised):
            reached("promise-flushed")
        elif not self.is_over and isinstance(message, msg.Acked):
            reached("confirm-flushed" if message.sequence else "adoption-flushed")
        reply(self, message)

    def rolled_observed(self: Any, operation: Any) -> None:
        before = len(self.completed)
        rolled(self, operation)
        if len(self.completed) > before:
            reached("roll")

    replace(AppendMachine, "state", _ObservedState(reached))
    replace(JournalReplica, "accept", accept_observed)
    replace(JournalReplica, "rolled", rolled_observed)
    replace(PeerStream, "_handle", handle_observed)
    replace(PeerStream, "reply", reply_observed)
    _observe_copies(reached, replace)


def _observe_copies(reached: Callable[[str], None], replace: Replace) -> None:
    on_fetch, record = Provider.on_fetch, Copier._record
    on_message, on_copied = Copier._on_message, Copier._on_copied

    def on_fetch_observed(self: Any, *arguments: Any) -> None:
        on_fetch(self, *arguments)
        reached("copy-asked")

    def on_message_observed(self: Any, copy: Any, replica: Any, message: Any) -> None:
        on_message(self, copy, replica, message)
        if isinstance(message, msg.Fetched) and message.end:
            reached("copy-received")

    def on_copied_observed(self: Any, *arguments: Any) -> None:
        on_copied(self, *arguments)
        reached("copy-stored")

    def record_observed(self: Any, *arguments: Any) -> None:
        record(self, *arguments)
        reached("copy-ended")

    replace(Provider, "on_fetch", on_fetch_observed)
    replace(Copier, "_on_message", on_message_observed)
    replace(Copier, "_on_copied", on_copied_observed)
    replace(Copier, "_record", record_observed)


def observe_shell(
    reached: Callable[[str], None], carried_out: Callable[[], None], replace: Replace = setattr
) -> None:
    """Call `reached` with each point outside of steps, and `carried_out` after each step.

    Args:
        reached: gets the name of the point, in any thread.
        carried_out: called once the effects of a step were carried out.
        replace: sets an attribute of a class.
    """
    perform, transact, write = BrokerServer._perform, BrokerServer._transact, CommitLog.append
    upload, list_ = FragmentStores.upload, FragmentStores.list

    def perform_observed(self: Any, effects: Any) -> None:
        perform(self, effects)
        carried_out()

    async def transact_observed(self: Any, effect: ev.Transact) -> None:
        is_observed = any(isinstance(row, JournalRow) for row in effect.change.written)
        if is_observed:
            reached("row-unwritten")
        await transact(self, effect)
        if is_observed:
            reached("row-written")

    def write_observed(self: Any, *arguments: Any) -> None:
        reached("log-unwritten")
        write(self, *arguments)
        reached("log-flushed")

    async def upload_observed(self: Any, *arguments: Any) -> Any:
        reached("upload-begun")
        found = await upload(self, *arguments)
        reached("upload-ended")
        return found

    async def list_observed(self: Any, *arguments: Any) -> Any:
        found = await list_(self, *arguments)
        reached("listing-ended")
        return found

    replace(BrokerServer, "_perform", perform_observed)
    replace(BrokerServer, "_transact", transact_observed)
    replace(CommitLog, "append", write_observed)
    replace(FragmentStores, "upload", upload_observed)
    replace(FragmentStores, "list", list_observed)


def main() -> int:
    trap = Trap(lambda: os.kill(os.getpid(), signal.SIGKILL))
    observe_core(trap.reached)
    observe_shell(trap.reached, trap.carried_out)

    def obey() -> None:
        for order in sys.stdin:
            trap.set(order)

    threading.Thread(target=obey, daemon=True).start()
    return broker_main.main()


if __name__ == "__main__":
    sys.exit(main())
