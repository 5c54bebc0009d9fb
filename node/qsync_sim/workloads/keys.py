"""Idempotency keys that are retried late, reused, and sent with old marks.

The window of the schedule is so short that keys expire within it. A retry within the window gets
the index of the first attempt. After the window it is refused with an unknown outcome, and never
runs again.
"""

from typing import Any

from qsync_node.errors import ErrorCode
from qsync_sim.model import REPLACE
from qsync_sim.workloads.base import Request, Script, Workload, body_of
from qsync_sim.workloads.checks import CIRCUMSTANCES
from qsync_sim.workloads.order import Order

SPACE = 650
KEYS = 5
WINDOW_ROWS = 300
"""The window at the start of a schedule; a fault makes it longer."""
REQUESTS = 26
EXPIRED, REUSED = int(ErrorCode.KEY_EXPIRED), int(ErrorCode.KEY_REUSED)


class Keys(Workload):
    """Writes with idempotency keys, and their late retries."""

    name = "keys"
    number = 5

    def __init__(self, world: Any) -> None:
        super().__init__(world)
        self.attempts: dict[int, list[Request]] = {}  # by the number of the key

    def set_up(self) -> None:
        """Create the space."""
        self.world.insert(280, [SPACE, 1, f"s{SPACE}", "memtx", 0, {}, []])
        self.world.insert(288, [SPACE, 0, "key", "tree", {}, [[0, "unsigned"]]])

    def scripts(self) -> list[Script]:
        return [self._work(), self._work()]

    # --- requests -----------------------------------------------------------------------------

    def _work(self) -> Script:
        rng = self.rng
        for _ in range(REQUESTS):
            kind = rng.choice(["new", "new", "retry", "retry", "late retry", "reuse", "old mark"])
            numbers = list(self.attempts)
            if not numbers or kind in ("new", "old mark"):
                age = 0 if kind == "new" else rng.choice([100, 310, 500])
                yield self._send_new(max(0, self.world.told_index - age))
                continue
            number = numbers[0] if kind == "late retry" else rng.choice(numbers[-4:])
            first = self.attempts[number][0]
            body, tag = first.body, first.tag
            if kind == "reuse":
                tag = self.new_tag()
                body = body_of(space=SPACE, tuple=[rng.randrange(KEYS), tag])
            again = Request(kind, REPLACE, body, tag, key=first.key)
            self.attempts[number].append(again)
            yield self.sent(again)

    def _send_new(self, mark: int) -> Request:
        tag, number = self.new_tag(), len(self.attempts) + 1
        body = body_of(space=SPACE, tuple=[self.rng.randrange(KEYS), tag])
        request = Request("first", REPLACE, body, tag, key=["workload", number, mark])
        self.attempts[number] = [request]
        return self.sent(request)

    # --- checks -------------------------------------------------------------------------------

    def check(self, order: Order) -> None:
        """Check all attempts of all keys (T9)."""
        for attempts in self.attempts.values():
            for request in attempts:
                self._check_attempt(order, request, attempts)
            self._check_places(order, attempts)

    def _check_attempt(self, order: Order, request: Request, attempts: list[Request]) -> None:
        places = order.places.get(request.tag, [])
        mark = request.key[2]
        if len(places) > 1:
            self.fail(request, f"T9: it took effect at {places}")
        if request.outcome == "committed":
            if places != [request.index]:
                self.fail(request, f"T9: its row is at {places}")
            if request.index <= request.floor_index:
                self.world.count("keys answered again")
            elif self._is_old(mark, request.floor_index):
                self.fail(request, f"T9: it ran at {request.index}, after the window of {mark}")
        elif request.code == EXPIRED:
            if request.ceiling_index - mark <= WINDOW_ROWS:
                self.fail(request, f"T9: the window of {mark} was not over")
            self.world.count("keys expired")
        elif request.code == REUSED:
            others = [one for one in attempts if one.tag != request.tag]
            if all(one.outcome in ("refused", "rolled back") for one in others):
                self.fail(request, "T9: no other request had this key")
            self.world.count("keys reused")
        elif request.outcome == "refused" and request.code not in CIRCUMSTANCES:
            self.fail(request, "T6: no rule allows this error")

    def _is_old(self, mark: int, index: int) -> bool:
        """Return whether a mark is surely from before the window when the log is at `index`."""
        is_changed = self.world.counters["fault key window changed"] > 0
        return not is_changed and mark < index - WINDOW_ROWS

    def _check_places(self, order: Order, attempts: list[Request]) -> None:
        """Check that one request of a key took effect, and only if an attempt allows it."""
        found = sorted({place for one in attempts for place in order.places.get(one.tag, [])})
        if len(found) > 1 and found[1] - found[0] <= WINDOW_ROWS:
            self.fail(attempts[0], f"T9: requests with its key took effect at {found}")
        for tag in {one.tag for one in attempts}:
            same = [one for one in attempts if one.tag == tag]
            is_none = all(
                one.outcome in ("refused", "rolled back") or one.code == EXPIRED for one in same
            )
            if is_none and tag in order.places:
                self.fail(same[0], f"T6: no attempt ran, but it is at {order.places[tag]}")
