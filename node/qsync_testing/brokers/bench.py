"""A simulated cluster of brokers with one journal, and its client."""

from typing import Any

from qsync_broker.requests import Append, Appended
from qsync_broker.status import Status
from qsync_node.format.journals import JOURNAL_SPACE, JournalRow, Route, decode_row
from qsync_sim.journals.clock import MS, SECOND
from qsync_sim.journals.world import BrokerWorld

NAMES = ["broker-a", "broker-b", "broker-c"]
JOURNAL = "orders/eu"


class Bench:
    """A world with one journal, and a client that follows the primary."""

    def __init__(
        self,
        seed: int = 1,
        names: list[str] | None = None,
        replication: int = 3,
        *,
        are_stores_down: bool = False,
        **spec: Any,
    ) -> None:
        self.world = BrokerWorld(seed, names or NAMES)
        self.world.stores.are_down = are_stores_down
        self.world.keys.create(JOURNAL, replication, **spec)
        self.results: list[Appended] = []
        assert self.world.run(5 * SECOND, lambda: len(self.row.route.members) == replication)
        self.world.run(SECOND // 2)

    @property
    def row(self) -> JournalRow:
        row = decode_row(JOURNAL_SPACE, self.world.keys.rows[JOURNAL_SPACE, (JOURNAL,)])
        assert isinstance(row, JournalRow)
        return row

    @property
    def route(self) -> Route:
        keys = next(one for one in self.world.processes.values() if one.is_alive).core.keys
        return keys.route(JOURNAL)

    @property
    def primary(self) -> str:
        """Return the primary, once a broker that has started again knows it."""
        assert self.world.run(5 * SECOND, lambda: self.route.primary >= 0)
        return self.route.members[self.route.primary].suffix

    def begin(self, data: bytes = b"x", name: str = "", **fields: object) -> None:
        request = Append(JOURNAL, **fields)  # type: ignore[arg-type]  # of the named fields
        self.world.append(
            name or self.primary, request, [data] if data else [], lambda it, _: self.done(it)
        )

    def done(self, result: Appended) -> None:
        self.results.append(result)

    def append(self, data: bytes = b"x", name: str = "", **fields: object) -> Appended:
        count = len(self.results)
        self.begin(data, name, **fields)
        assert self.world.run(8 * SECOND, lambda: len(self.results) > count)
        return self.results[-1]

    def follow(self, request: Append, name: str = "") -> Appended:
        """Append without content, at the brokers that the answers name."""
        broker = name or self.primary
        for _ in range(3):
            answers: list[tuple[Appended, bool]] = []
            self.world.append(broker, request, [], lambda *answer: answers.append(answer))  # noqa: B023  # called in this iteration
            assert self.world.run(8 * SECOND, lambda: bool(answers))  # noqa: B023  # called in this iteration
            (result, is_proxied), *_ = answers
            if not is_proxied:
                break
            broker = result.resolution.broker.suffix
        return result

    def restart(self) -> None:
        """Kill all brokers, and start them once their leases have ended."""
        names = list(self.world.processes)
        for name in names:
            self.world.kill(name)
        self.world.run(3 * SECOND)
        for name in names:
            self.world.start(name)
        self.world.run(3 * SECOND)

    def until_ok(self, data: bytes = b"x") -> Appended:
        for _ in range(40):
            result = self.append(data)
            if result.resolution.status is Status.OK and not result.error:
                return result
            self.world.run(100 * MS)
        raise AssertionError(f"no append succeeded: {result}")
