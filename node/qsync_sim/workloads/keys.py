"""Idempotency keys that are retried late, reused, and sent with old marks.

The window of the schedule is so short that keys expire within it. A retry within the window gets
the index of the first attempt. After the window it is refused with an unknown outcome, and never
runs again. The rows of the order state the window at each index.

Two sessions meet at a beat, so that one reuses a key whose first request is still pending. A third
session repeats transactions with a keyed COMMIT, or commits other statements with a known key.
"""

from bisect import bisect_right

from qsync_client.protocol.spaces import SystemSpace
from qsync_node.errors import ErrorCode
from qsync_node.format.keys import KEY_TUPLE, REPLACE
from qsync_node.transactions.own_rows import KEY_WINDOW_KEY
from qsync_sim.clients import BEGIN, COMMIT, ROLLBACK
from qsync_sim.cluster import KEY_WINDOW_ROWS, Cluster
from qsync_sim.workloads.base import LOST, Script, Workload, WorkloadRequest, body_of
from qsync_sim.workloads.checks import CIRCUMSTANCES
from qsync_sim.workloads.order import ConfirmedOrder

SPACE, SCHEMA = 650, int(SystemSpace.SCHEMA)
KEYS = 5
LONGER_ROWS = (1_000, 1_200)
CHANGES = 0.5
"""The part of the schedules in which the workload changes the window."""
REQUESTS, TRANSACTIONS = 26, 12
OLDEST = 2
"""The number of keys that are retried after each change of the window, the oldest ones."""
EXPIRY_POLLS, EXPIRY_POLL_MS = 40, 250
AGES = (50, KEY_WINDOW_ROWS + 10, 2 * KEY_WINDOW_ROWS)
"""How old marks are when they are first used, in rows."""
BEAT_MS = 50
KINDS = ("new", "new", "retry", "retry", "late retry", "reuse", "old mark", "race", "race")
EXPIRED, REUSED = int(ErrorCode.KEY_EXPIRED), int(ErrorCode.KEY_REUSED)
KNOWN = "keys answered again"
ABORTED = (int(ErrorCode.TRANSACTION_CONFLICT), int(ErrorCode.TRANSACTION_TIMEOUT))
"""Codes with which a COMMIT may be refused; the workload `transactions` makes timeouts short."""


class KeyWorkload(Workload):
    """Writes with idempotency keys, and their late retries."""

    name = "keys"
    number = 5

    def __init__(self, world: Cluster) -> None:
        super().__init__(world)
        self.attempts: dict[int, list[WorkloadRequest]] = {}  # by the number of the key
        self.commits: dict[int, list[WorkloadRequest]] = {}  # the same for keys of transactions
        self._windows: list[tuple[int, int, int]] = [(0, KEY_WINDOW_ROWS, 0)]  # index, rows, floor

    def set_up(self) -> None:
        """Create the space."""
        self.world.insert(SystemSpace.SPACE, [SPACE, 1, f"s{SPACE}", "memtx", 0, {}, []])
        self.world.insert(SystemSpace.INDEX, [SPACE, 0, "key", "tree", {}, [[0, "unsigned"]]])

    def scripts(self) -> list[Script]:
        return [self._work(), self._work(), self._commit(), self._change_window()]

    # --- requests -----------------------------------------------------------------------------

    def _work(self) -> Script:
        rng = self.rng
        for _ in range(REQUESTS):
            kind = rng.choice(KINDS)
            if kind == "race":
                yield self.until_beat(BEAT_MS)
            numbers = list(self.attempts)
            if kind == "race":
                is_pending = bool(numbers) and not self.attempts[numbers[-1]][0].outcome
                if is_pending:
                    self.world.count("keys: pending keys reused")
                    numbers = numbers[-1:]
                kind = "reuse" if is_pending else "new"
            if not numbers or kind in ("new", "old mark"):
                age = 0 if kind == "new" else rng.choice(AGES)
                yield self._send_new(max(0, self.world.told_index - age))
                continue
            number = numbers[0] if kind == "late retry" else rng.choice(numbers[-4:])
            yield self._send_again(kind, number)

    def _send_new(self, mark: int) -> WorkloadRequest:
        tag, number = self.new_tag(), len(self.attempts) + 1
        body = body_of(space=SPACE, tuple=[self.rng.randrange(KEYS), tag])
        request = WorkloadRequest("first", REPLACE, body, tag, key=["workload", number, mark])
        self.attempts[number] = [request]
        return self.sent(request)

    def _send_again(self, kind: str, number: int) -> WorkloadRequest:
        """Send a request with a known key: the same one, or another one to reuse the key."""
        first = self.attempts[number][0]
        body, tag = first.body, first.tag
        if kind == "reuse":
            tag = self.new_tag()
            body = body_of(space=SPACE, tuple=[self.rng.randrange(KEYS), tag])
        again = WorkloadRequest(kind, REPLACE, body, tag, key=first.key)
        self.attempts[number].append(again)
        return self.sent(again)

    def _commit(self) -> Script:
        """Send transactions of one row with a keyed COMMIT."""
        rng = self.rng
        for stream in range(1, TRANSACTIONS + 1):
            yield rng.choice([0, 20, 200]) + self.until_beat(BEAT_MS)
            numbers = list(self.commits)[-3:]
            kind = rng.choice(["first", "retry", "reuse"]) if numbers else "first"
            number = len(self.commits) + 1 if kind == "first" else rng.choice(numbers)
            attempts = self.commits.get(number, [])
            if kind == "retry":
                first = attempts[0]
                tag, key = first.tag, first.key
                body = first.note
            else:
                tag, mark = self.new_tag(), self.world.told_index
                body = body_of(space=SPACE, tuple=[rng.randrange(KEYS), tag])
                key = attempts[0].key if attempts else ["transactions", number, mark]
            begin = WorkloadRequest("begin", BEGIN, b"", stream=stream)
            yield self.sent(begin)
            if begin.outcome != "committed":
                continue
            statement = WorkloadRequest("statement", REPLACE, body, stream=stream)
            yield self.sent(statement)
            if statement.outcome != "committed":
                yield self.sent(WorkloadRequest("rollback", ROLLBACK, b"", stream=stream))
                continue
            end = WorkloadRequest(kind, COMMIT, b"", tag, stream=stream, key=key, note=body)
            self.commits.setdefault(number, []).append(end)
            yield self.sent(end)

    def _change_window(self) -> Script:
        """Make the window longer once or twice, and retry the oldest keys.

        Most changes wait until the oldest key has expired: it stays expired in the longer window.
        """
        rng = self.rng
        for rows in LONGER_ROWS if rng.random() < CHANGES else ():
            yield rng.randrange(1_000, 6_000)
            for _ in range(rng.choice([0, EXPIRY_POLLS, EXPIRY_POLLS])):
                if self._has_oldest_expired():
                    break
                yield EXPIRY_POLL_MS
            leader = self.world.leader()
            if leader is not None:
                self.world.count("keys: window changes")
                self.world.command(leader, "set_key_window", rows=rows)
            for number in list(self.attempts)[:OLDEST]:
                yield rng.choice([50, 300])
                yield self._send_again("late retry", number)

    def _has_oldest_expired(self) -> bool:
        """Return whether the first key is out of the window that the schedule began with."""
        first = next(iter(self.attempts.values()), None)
        return first is not None and self.world.told_index > first[0].index + KEY_WINDOW_ROWS > 0

    # --- checks -------------------------------------------------------------------------------

    def check(self, order: ConfirmedOrder) -> None:
        """Check all attempts of all keys (T9)."""
        self._windows = [(0, KEY_WINDOW_ROWS, 0)]
        for index, row in order.rows.items():
            made = row.fields.get(KEY_TUPLE)
            if row.space == SCHEMA and made and made[0] == KEY_WINDOW_KEY:
                self._windows.append((index, made[1], made[2]))
        for attempts in (*self.attempts.values(), *self.commits.values()):
            for request in attempts:
                if request.outcome:
                    self._check_attempt(order, request, attempts)
            self._check_places(order, attempts)

    def _check_attempt(
        self, order: ConfirmedOrder, request: WorkloadRequest, attempts: list[WorkloadRequest]
    ) -> None:
        places = order.places.get(request.tag, [])
        mark = request.key[2]
        is_commit = request.type == COMMIT
        if len(places) > 1:
            self.fail(request, f"T9: it took effect at {places}")
        if request.outcome == "committed":
            if places != [request.index]:
                self.fail(request, f"T9: its row is at {places}")
            if request.index <= request.floor_index:
                self.world.count("keys: commits answered again" if is_commit else KNOWN)
            elif mark < self._start_at(request.floor_index):
                self.fail(request, f"T9: it ran at {request.index}, after the window of {mark}")
        elif request.code == EXPIRED:
            if mark >= self._start_at(request.ceiling_index):
                self.fail(request, f"T9: the window of {mark} was not over")
            self.world.count("keys expired")
        elif request.code == REUSED:
            others = [one for one in attempts if one.tag != request.tag]
            if all(one.outcome in ("refused", "rolled back") for one in others):
                self.fail(request, "T9: no other request had this key")
            self.world.count("keys: reused commits refused" if is_commit else "keys reused")
        elif request.outcome == "refused" and request.code not in CIRCUMSTANCES:
            if not (is_commit and request.code in ABORTED):
                self.fail(request, "T6: no rule allows this error")

    def _start_at(self, index: int) -> int:
        """Return the start of the window when the log is at `index`, by the rows of the order."""
        position = bisect_right(self._windows, index, key=lambda window: window[0])
        _, rows, floor = self._windows[position - 1]
        return max(floor, index - rows)

    def _check_places(self, order: ConfirmedOrder, attempts: list[WorkloadRequest]) -> None:
        """Check that one request of a key took effect, and only if an attempt allows it."""
        found = sorted({place for one in attempts for place in order.places.get(one.tag, [])})
        if len(found) > 1 and found[1] - found[0] <= KEY_WINDOW_ROWS:
            self.fail(attempts[0], f"T9: requests with its key took effect at {found}")
        for tag in {one.tag for one in attempts}:
            same = [one for one in attempts if one.tag == tag]
            is_none = all(
                one.outcome in ("refused", "rolled back", LOST) or one.code == EXPIRED
                for one in same
            )
            if is_none and tag in order.places:
                self.fail(same[0], f"T6: no attempt ran, but it is at {order.places[tag]}")
