"""A cluster that is being formed: it takes user writes once a majority of its plan votes (M1)."""

from functools import partial

from qsync_client.protocol.spaces import SystemSpace
from qsync_node.consensus import effects as fx
from qsync_node.consensus.settings import MILLISECOND
from qsync_node.errors import ErrorCode
from qsync_node.transactions.own_rows import OPEN_KEY
from qsync_sim.cluster import KEY_WINDOW_ROWS
from qsync_sim.shell import Shell
from qsync_sim.workloads.base import body_of
from qsync_sim.world import World
from qsync_testing.worlds import INSERT, node_of

PLANNED = 5
MAJORITY = PLANNED // 2 + 1


class Forming:
    """A cluster for which `PLANNED` voters are planned, of which the first `started` run."""

    def __init__(self, started: int) -> None:
        self.world = World(1)
        self.answers: dict[int, fx.Answer] = {}
        self.world.on_story_answer = lambda answer: self.answers.update({answer.sync: answer})
        self.shells = [self.world.add() for _ in range(PLANNED)]
        self.leader = self.shells[0]
        self.leader.bootstrap(PLANNED, KEY_WINDOW_ROWS)
        for shell in self.shells[:started]:
            shell.start()
        assert self.world.run_for(20_000 * MILLISECOND, lambda: self.voters() == started)

    def voters(self) -> int:
        return len(node_of(self.leader).context.confirmed_configuration.voters)

    def run(self, milliseconds: int) -> None:
        self.world.run_for(milliseconds * MILLISECOND)

    def write(self, number: int) -> fx.Answer:
        """Create a space, and return the answer."""
        fields = [700 + number, 1, f"s{number}", "memtx", 0, {}, []]
        body = body_of(space=int(SystemSpace.SPACE), tuple=fields)
        self.leader.step([fx.Request(100, number, INSERT, body, 0, "admin", None)])
        assert self.world.run_for(10_000 * MILLISECOND, lambda: number in self.answers)
        return self.answers[number]


def opening_rows(shell: Shell) -> int:
    """Return how many rows of a member's log open the cluster."""
    tail = node_of(shell).context.tail
    batches = tail.batches_after(tail.first_available_index, 1 << 30)
    assert batches is not None
    return sum(batch.data.count(OPEN_KEY.encode()) for batch in batches)


def test_no_write_is_taken_before_a_majority_of_the_plan_votes() -> None:
    """Its rows would have fewer copies than the plan promises."""
    forming = Forming(MAJORITY - 1)
    forming.run(2_000)
    refused = forming.write(1)
    assert refused.code == ErrorCode.LOADING
    assert f"{MAJORITY - 1} of {PLANNED} planned voters" in refused.reason
    assert opening_rows(forming.leader) == 0
    forming.shells[MAJORITY - 1].start()
    assert forming.world.run_for(20_000 * MILLISECOND, node_of(forming.leader).registrar.is_open)
    assert forming.voters() == MAJORITY
    assert forming.write(2).code == 0


def test_cluster_is_opened_once() -> None:
    """A member that registers again meanwhile has a look at the opening, which is pending."""
    forming = Forming(MAJORITY - 1)
    leader, added = forming.leader, forming.shells[MAJORITY - 1]
    registrar = node_of(leader).registrar
    added.start()
    assert forming.world.run_for(20_000 * MILLISECOND, lambda: opening_rows(leader) > 0)
    assert not registrar.is_open()
    leader.run(partial(registrar.on_confirmed))
    assert forming.world.run_for(20_000 * MILLISECOND, registrar.is_open)
    forming.run(1_000)
    assert opening_rows(leader) == 1
