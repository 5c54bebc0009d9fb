"""Schema changes of large spaces, made in parts on every member (G1).

Theory. An index or a format that concerns more tuples than a step may handle is prepared by a
`Build` before the row takes effect. Only one build runs at a time.

On the leader the statement waits aside while its build runs, and other writes continue. When the
build has caught up with the confirmed rows, the statement returns to the head of the queue. There
it waits until the log is decided, as every DDL does, and then adopts the finished indexes. It has
no deadline meanwhile: its time depends on the size of the space.

On any other member the row comes from the log. The confirmed index stops before it until the build
is complete; the member still takes and acknowledges rows, so the quorum does not wait. A member
that catches up acknowledges no more than its queue may hold (T11). A new leader treats an inherited
row in the same way.

Invariants

  U1  A build holds exactly the confirmed tuples when a change adopts it: the database records the
      confirmed changes of the space from the moment when the build begins.
  U2  A build is an optimisation: without one, the change is made at once and gives the same state.
"""

from qsync_client.protocol.markers import UINT16, UINT32
from qsync_node.consensus.decisions import effective, is_covered
from qsync_node.consensus.entries import Entry, EntryKind
from qsync_node.engine import system
from qsync_node.engine.build import Build, NeedsBuildError
from qsync_node.engine.overlay import Extent, Layer
from qsync_node.engine.requests import Select, decode_request
from qsync_node.engine.statements import execute_write
from qsync_node.errors import ClientError, ErrorCode
from qsync_node.format.body import space_mark
from qsync_node.format.row import LogRow
from qsync_node.transactions.calls import Call
from qsync_node.transactions.shared import Shared
from qsync_node.transactions.stages import RequestStage
from qsync_node.transactions.waiting import WaitingCalls

BUILD_SHARE = 8
"""The part of a step's work that a build takes: writes beside it wait for one such part."""
_SCHEMA_MARKS = tuple(
    space_mark(space, marker)
    for space in (system.SPACE_ID, system.INDEX_ID)
    for marker in (UINT16, UINT32)
)
"""How the body of a row of `_space` or `_index` begins after its map header (requests.py)."""


class Builds:
    """The build of the next large schema change, and the statements that wait for one."""

    def __init__(self, shared: Shared) -> None:
        self.context = shared.context
        self.repair = shared.replica.repair
        self.state = shared.state
        self.queue = shared.queue
        self.answers = shared.answers
        self._call: Call | None = None  # the statement whose build runs
        self._is_aside = False  # it is in no queue until its build has caught up
        self._waiting: WaitingCalls[Call] = WaitingCalls()  # statements that need a build after it
        self._row_index = 0  # the row of the log that was looked at last

    @property
    def is_active(self) -> bool:
        """Whether a build continues in the next step."""
        build = self.state.database.build
        return build is not None and build.failure is None and not build.is_complete

    # --- statements of clients ------------------------------------------------------------------

    def begin(self, call: "Call", build: Build) -> None:
        """Run a build for a statement, which waits aside.

        Raises:
            ClientError: the new indexes would exceed the memory limit.
        """
        self._check_memory(build)
        if build.failure is not None:
            raise build.failure
        call.become(RequestStage.BUILDING)
        if self._call is not None and self._call is not call:
            self._waiting.append(call, call)
            return
        if self._call is None:
            # A build that begins again, because the space was replaced, has the usual deadline.
            self.answers.waiting.pop(call, None)
        self._call = call
        self._is_aside = True
        self._discard()
        self.state.database.build = build
        self.context.report("build", space=build.space.name, tuples=build.extent)

    def _check_memory(self, build: Build) -> None:
        """End a build whose indexes and recorded changes would exceed the memory limit."""
        database, limit = self.state.database, self.context.settings.memory_bytes_max
        if limit and database.memory_bytes + database.memory_of(build) > limit:
            build.fail(
                ClientError(
                    ErrorCode.MEMORY_ISSUE,
                    "the write was not logged: the new index would exceed the memory limit; "
                    "delete rows or raise `memory`",
                )
            )

    def is_ready(self, call: "Call") -> bool:
        """Return whether the statement may run; a statement without a build always may.

        Raises:
            ClientError: a tuple of the space contradicts the statement.
        """
        if call is not self._call:
            return True
        build = self.state.database.build
        if build is None:
            return True
        if build.failure is not None:
            raise build.failure
        return build.is_complete

    def advance(self) -> None:
        """Continue the build, and return a statement to the queue when its build has caught up."""
        build = self.state.database.build
        if build is not None and self.is_active:
            build.advance(self.context.settings.work_per_step // BUILD_SHARE)
            if self._is_aside:
                self._check_memory(build)
        call = self._call
        if call is None:
            return
        if call.is_done:
            # A row in the log still needs the build, even if its deadline passed.
            if self.state.ddl_barrier <= self.context.limbo.confirmed_index:
                self._end()
        elif self._is_aside and not self.is_active:
            self._is_aside = False
            self._await_answer(call)
            self.queue.appendleft(call)

    def _await_answer(self, call: "Call") -> None:
        """Give the statement a deadline from now on, unless it has one."""
        if call not in self.answers.waiting:
            call.arrived_ns = self.context.now_ns
            self.answers.waiting[call] = None

    def _end(self) -> None:
        """Let the next statement run: the row of this one was confirmed, or there is none."""
        self._call = None
        self._discard()
        self.queue.extend(call for call in self._waiting.clear() if not call.is_done)

    def _discard(self) -> None:
        self.state.database.discard_build()
        self._row_index = 0

    def take_back(self) -> "list[Call]":
        """Return the statements that wait aside: this member no longer leads."""
        call, self._call = self._call, None
        calls = self._waiting.clear()
        if call is not None and self._is_aside and not call.is_done:
            self._await_answer(call)
            calls.append(call)
        self._is_aside = False
        self._discard()
        return [call for call in calls if not call.is_done]

    def drop(self, owner: tuple[int, int]) -> None:
        """Discard the statements of a closed session, given as (link, session), that wait aside."""
        calls = self._waiting.remove_owner(owner)
        if self._call is not None and self._call.owner == owner and not self._call.may_be_logged:
            calls.append(self._call)
        for call in calls:
            if not call.is_done:
                self.answers.drop(call)

    def drop_link(self, link: int) -> None:
        """Discard the statements that a peer forwarded on a closed link."""
        self._waiting.remove_link(link)
        if self._call is not None and self._call.link == link:
            self.drop(self._call.owner)

    # --- rows of the log ------------------------------------------------------------------------

    def limit(self, index: int) -> int:
        """Return the index up to which rows may be confirmed now, at most `index`.

        It is the end of a transaction, and lies before a row whose build is not complete. A schema
        change among the rows of a decision without effect is applied without a build, because these
        rows are confirmed in one step (T5).
        """
        context = self.context
        limbo = context.limbo
        if self.repair.is_state_wrong:
            return index  # rows are not applied
        covering = effective(limbo.decisions) if limbo.decisions else []
        for entry in limbo.entries:
            first = entry.batch.first_index
            if first > index:
                break
            if entry.kind is not EntryKind.USER or entry.payload is not None:
                continue
            if covering and is_covered(entry.batch.last_index, covering):
                continue
            for position in _schema_changes(entry, index - first + 1):
                at = first + position
                if limbo.clamp(at - 1) < at - 1:
                    continue
                if at > limbo.confirmed_index + 1:
                    return at - 1
                if not self._is_row_ready(at, entry.rows[position]):
                    return limbo.confirmed_index
        return index

    def _is_row_ready(self, index: int, row: "LogRow") -> bool:
        """Return whether the next row to confirm may be applied.

        Begin its build if it needs one.
        """
        database = self.state.database
        if self._row_index != index:
            database.discard_build()
            self._row_index = index
            build = database.build = self._build_for(row)
            if build is not None:
                self.context.report("build", space=build.space.name, tuples=build.extent)
        return not self.is_active

    def _build_for(self, row: "LogRow") -> Build | None:
        layer = Layer(self.state.database, Extent.IN_PARTS)
        try:
            request = decode_request(row.type, row.body)
            assert not isinstance(request, Select), "rows are writes"
            layer.take(execute_write(layer, layer.space(request.space_id), request).changes)
        except NeedsBuildError as needed:
            return needed.build
        except ClientError:
            return None  # applying the row will report it (T7)
        return None

    def on_state_replaced(self) -> None:
        """Forget the build: a snapshot replaced the state that it was for."""
        self._row_index = 0


def _schema_changes(entry: Entry, rows_max: int) -> "list[int]":
    """Return the positions of rows that change `_space` or `_index`, alone in a transaction.

    Args:
        rows_max: the number of rows to look at.
    """
    rows = entry.rows
    return [
        position
        for position, row in enumerate(rows[:rows_max])
        if row.body.startswith(_SCHEMA_MARKS, 1)
        and row.is_commit
        and (position == 0 or rows[position - 1].is_commit)
    ]
