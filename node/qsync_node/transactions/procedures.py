"""Procedures of the CALL request and the admin verbs: both run the same functions.

There is no Lua here. CALL accepts the names that Tarantool's connectors and operators use to query
a node, and those that move leadership. Any other name is error 33.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from qsync_client.protocol.access import ALL_PRIVILEGES, Privilege
from qsync_node.consensus import effects as fx
from qsync_node.consensus.filtering import refusal_to_change
from qsync_node.consensus.membership import Configuration
from qsync_node.consensus.messages import NominationOrder
from qsync_node.consensus.settings import ConsensusSettings
from qsync_node.engine import publishing, system
from qsync_node.errors import ClientError, ErrorCode
from qsync_node.format.journals import PUBLISHER_SPACE
from qsync_node.format.keys import KEY_FUNCTION_NAME, KEY_TUPLE, Type
from qsync_node.format.mp import BAD_MSGPACK, is_number, pack, unpack_bounded
from qsync_node.transactions.calls import Call
from qsync_node.transactions.console import CONSOLE_PROCEDURE, evaluate
from qsync_node.transactions.info import box_info
from qsync_node.transactions.registrar import Registrar
from qsync_node.transactions.shared import Shared
from qsync_node.transactions.stages import RequestStage
from qsync_node.transactions.status import LiveStatus
from qsync_node.transactions.users import check_state_is_served
from qsync_node.transactions.waiting import WaitingCalls

SWITCHOVER_TIMEOUT_NS = 5_000_000_000
WAIT_MAX_S = 1e6
KEY_WINDOW_MIN, KEY_WINDOW_MAX = 1_000, 10_000_000
_EXECUTE = int(Privilege.EXECUTE)
PUBLICATION_WAITS_MAX = 1_000
VALUE_WORK, YAML_WORK = 5, 40
"""Cost of a byte in the answer of a procedure, and in a document, in units of 25 ns."""
WAITS_PER_STEP = 50
"""Each takes about 20 µs. A step examines the others in turn."""
_OPEN = frozenset({"qsync.mark", CONSOLE_PROCEDURE})
"""Any user may have idempotency keys, and a console checks the rights of each line."""
_ADMINISTRATIVE = frozenset({"box.snapshot", "box.ctl.promote", "box.ctl.demote"})


class Wait:
    """A call that waits for a condition, with a deadline."""

    __slots__ = ("call", "deadline_ns", "is_done", "result", "what")

    def __init__(
        self,
        call: Call,
        what: str,
        deadline_ns: int,
        is_done: Callable[[], bool],
        result: Callable[[], Any] | None = None,
    ) -> None:
        self.call = call
        self.what = what
        self.deadline_ns = deadline_ns
        self.is_done = is_done
        self.result = result  # of the call, also at the deadline; without one, that is an error


class Procedures:
    """Functions of one node by name."""

    def __init__(
        self,
        shared: Shared,
        registrar: Registrar,
        status: LiveStatus,
        checkpoint: Callable[[], bool],
    ) -> None:
        """Serve procedures and verbs.

        Args:
            shared: state and requests of all components.
            registrar: changes of the membership.
            status: the answer of `status`.
            checkpoint: begins a checkpoint; returns whether one has begun.
        """
        self.context = shared.context
        self.replica = shared.replica
        self.state = shared.state
        self.answers = shared.answers
        self.users = shared.users
        self.counters = shared.counters
        self.budget = shared.budget
        self.registrar = registrar
        self.status = status
        self._checkpoint = checkpoint
        self.waits: WaitingCalls[Wait] = WaitingCalls()
        self.snapshot_calls: list[Call] = []
        self._functions: dict[str, Callable[[Call, list[Any]], Any]] = {
            "box.info": lambda call, args: self.info(),
            "box.stat": lambda call, args: self.stat(),
            "box.ctl.promote": lambda call, args: self.promote(call),
            "box.ctl.demote": lambda call, args: self.demote(call),
            "box.ctl.wait_rw": self.wait_writable,
            "box.snapshot": lambda call, args: self.snapshot(call),
            "qsync.mark": lambda call, args: self.context.limbo.confirmed_index,
            "qsync.status": lambda call, args: self.status.report(),
            CONSOLE_PROCEDURE: self.console,
        }
        self._publication_waits = 0
        self._verbs: dict[str, Callable[[Call, dict[str, Any]], Any]] = {
            "status": lambda call, args: self.status.report(),
            "promote": lambda call, args: self.promote(call),
            "demote": lambda call, args: self.demote(call),
            "switchover": lambda call, args: self.switchover(call, str(args["target"])),
            "nominate": lambda call, args: self.nominate(int(args["term"])),
            "fence": lambda call, args: self.fence(call, True),
            "unfence": lambda call, args: self.fence(call, False),
            "snapshot": lambda call, args: self.snapshot(call),
            "unregister": lambda call, args: self.unregister(call, str(args["uuid"])),
            "set_role": lambda call, args: self.set_role(
                call, str(args["uuid"]), str(args["role"])
            ),
            "set_key_window": lambda call, args: self.set_key_window(call, int(args["rows"])),
            "configure": lambda call, args: self.configure(args),
            "force-confirm": lambda call, args: self.force(call, args, is_rollback=False),
            "force-rollback": lambda call, args: self.force(call, args, is_rollback=True),
        }

    # --- entry points -------------------------------------------------------------------------

    def on_command(self, item: fx.Command) -> None:
        request = fx.Request(item.session, item.sync, int(Type.CALL), b"", 0, "admin", None)
        call = Call(request, self.context.now_ns)
        verb = self._verbs.get(item.verb)
        try:
            if verb is None:
                raise ClientError(ErrorCode.NO_SUCH_PROC, f"unknown verb {item.verb!r}")
            self._answer(call, verb(call, item.arguments))
        except ClientError as error:
            self.answers.refuse(call, error.code, error.message)
        except (ValueError, TypeError, OverflowError, LookupError) as error:
            self.answers.refuse(call, ErrorCode.ILLEGAL_PARAMS, f"{item.verb}: {error}")

    def on_call(self, call: Call, name: str, arguments: list[Any]) -> None:
        """Run a client's CALL.

        Raises:
            ClientError: the procedure does not exist or the user may not execute it.
        """
        self.budget.charge(len(call.body))
        if name == "qsync.publication":
            self._answer(call, self.publication(call, arguments))
            return
        if name not in self._functions and not name.startswith("box.info."):
            raise ClientError(ErrorCode.NO_SUCH_PROC, f"Procedure '{name}' is not defined")
        self._answer(call, self._run(call, name, arguments))

    def _run(self, call: Call, name: str, arguments: list[Any]) -> object:
        self._check_rights(call, name)
        if name.startswith("box.info."):
            return _dig(self.info(), name.split(".")[2:], name)
        return self._functions[name](call, arguments)

    def console(self, call: Call, arguments: list[Any]) -> str:
        """Evaluate a line of a console; return the YAML document that it prints."""
        if not arguments or not isinstance(arguments[0], str):
            raise ClientError(ErrorCode.ILLEGAL_PARAMS, f"{CONSOLE_PROCEDURE}: the line is missing")
        document = evaluate(arguments[0], lambda name: self._run(call, name, []))
        self.budget.add(len(document) * YAML_WORK)
        return document

    def _check_rights(self, call: Call, name: str) -> None:
        """Require execute on the universe for queries, and every right there to move leadership."""
        if name in _OPEN:
            return
        wanted = ALL_PRIVILEGES if name in _ADMINISTRATIVE else _EXECUTE
        if self.users.user_of(call.user).universe & wanted != wanted:
            raise ClientError(
                ErrorCode.ACCESS_DENIED,
                f"Execute access to function '{name}' is denied for user '{call.user}'",
            )

    def _answer(self, call: Call, value: object) -> None:
        if value is _LATER:
            if call.stage is RequestStage.RECEIVED:
                call.become(RequestStage.WAITING)
        elif not call.is_done:
            packed = pack(value)
            self.budget.add(len(packed) * VALUE_WORK)
            self.answers.answer(call, [packed])

    # --- queries ------------------------------------------------------------------------------

    def info(self) -> dict[str, Any]:
        return box_info(self.replica, self.status.report())

    def stat(self) -> dict[str, Any]:
        return {name: {"total": total} for name, total in sorted(self.counters.items())}

    def publication(self, call: Call, arguments: list[Any]) -> object:
        """Answer whether a publication is in its journal, and where; wait up to a timeout for it.

        The arguments are the journal, the sequence, and the timeout in seconds.
        """
        check_state_is_served(self.replica)
        journal, sequence, timeout = [*arguments, 0][:3] if len(arguments) in (2, 3) else (0, 0, 0)
        if not isinstance(journal, str) or type(sequence) is not int or not is_number(timeout):
            raise ClientError(
                ErrorCode.ILLEGAL_PARAMS,
                "qsync.publication takes a journal, a sequence, and a timeout in seconds",
            )
        space = self.state.database.find_space(PUBLISHER_SPACE)
        if space is None:
            raise ClientError(ErrorCode.NO_SUCH_JOURNAL, "journals are not enabled in this cluster")
        user = self.users.user_of(call.user)
        if not publishing.may_publish(self.state.database, journal, user):
            user.check_space(space.definition, system.READ)

        def found() -> dict[str, Any]:
            return publishing.find_publication(self.state.database, journal, sequence)

        if found()["state"] == publishing.PUBLISHED or timeout <= 0:
            return found()
        if self._publication_waits >= PUBLICATION_WAITS_MAX:
            raise ClientError(
                ErrorCode.TOO_MANY, "too many calls wait for publications; retry without a timeout"
            )
        self._publication_waits += 1
        deadline_ns = self.context.now_ns + int(min(timeout, WAIT_MAX_S) * 1e9)

        def is_done() -> bool:
            return bool(found()["state"] == publishing.PUBLISHED)

        self.waits.append(call, Wait(call, "publication", deadline_ns, is_done, found))
        return _LATER

    # --- leadership ---------------------------------------------------------------------------

    def promote(self, call: Call) -> object:
        """Take over leadership by an ordinary vote; answer once this member is writable."""
        context = self.context
        replica = self.replica
        if replica.leader is None:
            reason = replica.election.on_nominate(NominationOrder(context.term))
            if reason:
                raise ClientError(ErrorCode.UNSUPPORTED, f"promote failed: {reason}")
        return self._wait(call, "promote", lambda: not self.status.read_only_reason())

    def nominate(self, term: int) -> object:
        reason = self.replica.election.on_nominate(NominationOrder(term))
        if reason:
            raise ClientError(ErrorCode.UNSUPPORTED, f"nominate failed: {reason}")
        return "nominated"

    def demote(self, call: Call) -> object:
        """Hand leadership to the best other voter (E9)."""
        replica = self.replica
        if replica.leader is None:
            return "the member does not lead"
        targets = replica.leader.tracker.successors()
        if not targets:
            raise ClientError(
                ErrorCode.NO_ELECTION_QUORUM,
                "demote failed: no other voter is available to lead; restore a voter first",
            )
        return self.switchover(call, targets[0])

    def switchover(self, call: Call, target: str) -> object:
        context = self.context
        replica = self.replica
        leader = replica.leader
        if leader is None:
            raise ClientError(
                ErrorCode.NOT_LEADER, "the member does not lead: send the request to the leader"
            )
        member = next(
            (m for m in context.configuration.members if target in (m.uuid, m.name)), None
        )
        reason = (
            leader.transfer.start(member.uuid, SWITCHOVER_TIMEOUT_NS)
            if member is not None
            else f"the cluster has no member {target}; `qsync status` lists the members"
        )
        if reason:
            raise ClientError(ErrorCode.UNSUPPORTED, f"switchover failed: {reason}")
        return self._wait(call, "switchover", lambda: replica.leader is not leader)

    def force(self, call: Call, args: dict[str, Any], is_rollback: bool) -> object:
        """Continue after the quorum is lost permanently, without the members in the order (E11)."""
        if args.get("disks_destroyed") is not True:
            raise ClientError(
                ErrorCode.ILLEGAL_PARAMS,
                "the order was refused: it must contain disks_destroyed: true, because "
                "lost voters that still run could elect a second leader; destroy or "
                "fence off their disks first",
            )
        lost = [str(uuid) for uuid in args["lost"]]
        reason = self.replica.election.force(lost, is_rollback)
        if reason:
            raise ClientError(ErrorCode.UNSUPPORTED, f"force failed: {reason}")
        return self._wait(call, "force", lambda: not self.status.read_only_reason())

    def fence(self, call: Call, is_fenced: bool) -> object:
        """Set the fence, and answer once it is durable (E10).

        A fenced node hands over leadership, but still votes and acknowledges.
        """
        context = self.context
        replica = self.replica
        if context.ballot.is_fenced != is_fenced:
            context.store_ballot(replace(context.ballot, is_fenced=is_fenced))
            context.report("fence" if is_fenced else "unfence")
        if is_fenced and replica.leader is not None:
            leader = replica.leader
            targets = leader.tracker.successors()
            if not targets or leader.transfer.start(targets[0], SWITCHOVER_TIMEOUT_NS):
                replica.step_down("this member was fenced")
        context.when_settled(lambda: self._answer(call, "fenced" if is_fenced else "unfenced"))
        if call.is_done:
            return _LATER
        # A full disk may not take the ballot for days.
        return self._wait(call, "fence" if is_fenced else "unfence", lambda: call.is_done)

    def wait_writable(self, call: Call, arguments: list[Any]) -> object:
        timeout = arguments[0] if arguments and is_number(arguments[0]) else 100
        timeout_ns = int(min(max(timeout, 0), WAIT_MAX_S) * 1e9)
        return self._wait(call, "wait_rw", lambda: not self.status.read_only_reason(), timeout_ns)

    def snapshot(self, call: Call) -> object:
        if not self._checkpoint():
            raise ClientError(
                ErrorCode.UNSUPPORTED,
                "the snapshot was not started: another one is being written; wait for its end",
            )
        self.snapshot_calls.append(call)
        return _LATER

    def on_snapshot_written(self, item: fx.SnapshotWritten) -> None:
        calls, self.snapshot_calls = self.snapshot_calls, []
        for call in calls:
            if item.reason:
                self.answers.refuse(call, ErrorCode.SYSTEM, f"the snapshot failed: {item.reason}")
            else:
                self._answer(call, "ok")

    def unregister(self, call: Call, uuid: str) -> object:
        context = self.context
        entry = self.registrar.unregister(uuid)
        # An earlier order may be pending: its row can still be rolled back (M2).
        if entry is None and context.confirmed_configuration.by_uuid(uuid) is None:
            return "unregistered"
        return self._wait(
            call, "unregister", lambda: context.confirmed_configuration.by_uuid(uuid) is None
        )

    def set_role(self, call: Call, uuid: str, role: str) -> object:
        if role not in ("voter", "async"):
            raise ClientError(
                ErrorCode.ILLEGAL_PARAMS, f"invalid role {role}: choose voter or async"
            )
        context = self.context
        entry = self.registrar.set_role(uuid, role)
        if entry is None and _has_role(context.confirmed_configuration, uuid, role):
            return role
        return self._wait(
            call, "set_role", lambda: _has_role(context.confirmed_configuration, uuid, role)
        )

    def set_key_window(self, call: Call, rows: int) -> object:
        if not KEY_WINDOW_MIN <= rows <= KEY_WINDOW_MAX:
            raise ClientError(
                ErrorCode.ILLEGAL_PARAMS,
                f"set_key_window failed: {rows} rows is out of range; choose "
                f"{KEY_WINDOW_MIN} to {KEY_WINDOW_MAX}",
            )
        if self.state.keys.window_rows != rows or self.replica.leader is not None:
            self.registrar.set_key_window(rows)
        return self._wait(call, "set_key_window", lambda: self.state.keys.window_rows == rows)

    def configure(self, arguments: dict[str, Any]) -> object:
        """Change settings of the running node; they apply at once, to waiting entries too."""
        known = {
            name for name in ConsensusSettings.__dataclass_fields__ if name not in ("name", "level")
        }
        unknown = sorted(set(arguments) - known)
        if unknown:
            raise ClientError(ErrorCode.CFG, f"unknown setting {unknown[0]!r}")
        before = self.context.settings
        settings = replace(before, **arguments)
        if settings.role == "anonymous" and before.role != "anonymous":
            raise ClientError(
                ErrorCode.UNSUPPORTED,
                "the role cannot change to anonymous: a registered replica stays "
                "registered (M5); remove it and join with an empty directory",
            )
        reason = refusal_to_change(self.context.ballot, before, settings)
        if reason:
            raise ClientError(ErrorCode.UNSUPPORTED, reason)
        self.context.settings = settings
        if settings.role != before.role:
            if self.context.tail.last_term > self.context.term:
                # An anonymous replica learns of a term by its rows.
                self.replica.adopt_term(self.context.tail.last_term)
            # The replica now registers with the leader and follows the whole log.
            self.replica.source.restart()
        if self.replica.leader is not None:
            self.replica.leader.advance()
        return "configured"

    # --- waiting ------------------------------------------------------------------------------

    def _wait(
        self,
        call: Call,
        what: str,
        is_done: Callable[[], bool],
        timeout_ns: int = SWITCHOVER_TIMEOUT_NS,
    ) -> object:
        # Those that wait already are examined once a step: many calls may arrive in it (G1).
        if is_done():
            return "ok"
        self.waits.append(call, Wait(call, what, self.context.now_ns + timeout_ns, is_done))
        return _LATER

    def on_owner_closed(self, owner: tuple[int, int]) -> None:
        """Wait no longer for the calls of a session, given as (link, session)."""
        self._drop(self.waits.remove_owner(owner))

    def on_link_down(self, link: int) -> None:
        """Wait no longer for the calls that a member forwarded by a link."""
        self._drop(self.waits.remove_link(link))

    def _drop(self, waits: list[Wait]) -> None:
        for wait in waits:
            self._publication_waits -= wait.result is not None
            self.answers.drop(wait.call)

    def tick(self) -> None:
        """Examine the next calls that wait, and answer those whose wait is over."""
        now = self.context.now_ns
        for _ in range(min(len(self.waits), WAITS_PER_STEP)):
            wait = self.waits.popleft()
            is_done, is_late = wait.is_done(), now >= wait.deadline_ns
            if not is_done and not is_late:
                self.waits.append(wait.call, wait)
            elif wait.result is not None:
                self._publication_waits -= 1
                self._answer(wait.call, wait.result())
            elif is_done:
                self._answer(wait.call, "ok")
            else:
                self.answers.refuse(
                    wait.call,
                    ErrorCode.TIMEOUT,
                    f"{wait.what} did not finish in time: it may still take effect; check `status`",
                )


class _Later:
    """Sentinel: the answer is sent later."""


_LATER = _Later()


def _has_role(configuration: Configuration, uuid: str, role: str) -> bool:
    member = configuration.by_uuid(uuid)
    return member is not None and member.role == role


def call_fields(body: bytes) -> tuple[str, list[Any]]:
    """Return name and arguments of a CALL.

    Raises:
        ClientError: the body has another form.
    """
    try:
        fields = unpack_bounded(body)
        if not isinstance(fields, dict):
            raise ValueError("the body is no map")
        name, arguments = fields[KEY_FUNCTION_NAME], fields.get(KEY_TUPLE, [])
    except KeyError:
        raise ClientError(
            ErrorCode.MISSING_REQUEST_FIELD, "Missing mandatory field 'function name' in request"
        ) from None
    except BAD_MSGPACK as error:
        raise ClientError(ErrorCode.INVALID_MSGPACK, "Invalid MsgPack - packet body") from error
    if not isinstance(name, str) or not isinstance(arguments, list):
        raise ClientError(ErrorCode.INVALID_MSGPACK, "Invalid MsgPack - packet body")
    return name, arguments


def _dig(value: object, path: list[str], name: str) -> object:
    for part in path:
        if not isinstance(value, dict) or part not in value:
            raise ClientError(ErrorCode.NO_SUCH_PROC, f"Procedure '{name}' is not defined")
        value = value[part]
    return value
