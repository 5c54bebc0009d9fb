"""Lists of spaces: the rows that a filtered anonymous replica gets, keeps and is refused."""

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import msgpack
import pytest

from qsync_client.protocol.constants import Key
from qsync_client.protocol.spaces import SystemSpace
from qsync_node.consensus import effects as fx
from qsync_node.consensus import messages as msg
from qsync_node.consensus.ballot import Ballot
from qsync_node.consensus.context import Context
from qsync_node.consensus.encoding import encode_transactions
from qsync_node.consensus.filtering import (
    ids_of,
    keep_spaces,
    refusal_to_change,
    refusal_to_serve,
    refusal_to_start,
)
from qsync_node.consensus.messages import PeerMessage
from qsync_node.consensus.replica import Replica
from qsync_node.consensus.settings import MILLISECOND, SECOND, ConsensusSettings
from qsync_node.errors import ErrorCode
from qsync_node.format.batch import LogBatch, split_batches
from qsync_node.format.body import put_body
from qsync_node.format.row import decode_rows
from qsync_sim.clients import build_body
from qsync_sim.model import ASYNC_SPACE, SPACE
from qsync_sim.schedule import Schedule
from qsync_sim.shell import Shell
from qsync_sim.world import World

NOP = 12
NAMES = {"orders": 600, "views": 601, "_space": 280}


def body(space: int, *fields: object) -> bytes:
    return put_body(space, msgpack.packb(fields))


def batch_of(transactions: list[list[tuple[int, bytes, Any]]], flags: int = 6) -> LogBatch:
    data, rows = encode_transactions(transactions, 2, 41, 1.5, flags)
    return LogBatch(101, 100 + rows, 2, 40 + rows, data)


# --- rows -------------------------------------------------------------------------------------


def test_other_spaces_become_nops_in_the_same_place() -> None:
    update = msgpack.packb({Key.SPACE_ID: 601, Key.KEY: [1], Key.TUPLE: [["+", 1, 1]]})
    delete = msgpack.packb({Key.KEY: [1], Key.SPACE_ID: 601})  # the space ID may follow other keys
    control = msgpack.packb({2: 1, 3: 7, Key.TERM: 1, Key.INDEX: 99, Key.INDEX_TERM: 1})
    batch = batch_of(
        [
            [(2, body(600, 1), None)],
            [(2, body(601, 1), None)],
            [(2, body(601, 2), None), (4, update, None), (3, body(600, 2), ["client", 1, 2])],
            [(5, delete, ["client", 2, 3]), (5, delete, None)],
            [(2, body(280, 700, 1, "new"), None)],
            [(40, control, None)],
        ]
    )
    kept = keep_spaces(batch, {600})
    assert kept[:4] == batch[:4]
    before, after = decode_rows(batch.data), decode_rows(kept.data)
    assert [row.type for row in after] == [2, NOP, NOP, NOP, 3, NOP, NOP, 2, 40]
    for one, other in zip(before, after, strict=True):
        assert other.body == (b"" if other.type == NOP else one.body)
        one.type, one.body = other.type, other.body
    assert before == after  # replica ID, LSN, transaction, flags, timestamp and key
    assert split_batches(kept.data, 100) == [kept]


def test_a_batch_that_is_wanted_keeps_its_bytes() -> None:
    batch = batch_of([[(2, body(600, 1), None), (2, body(600, 2), ["c", 1, 1])]], flags=0)
    assert keep_spaces(batch, {600}) == batch
    assert keep_spaces(batch, set()) == batch


# --- lists ------------------------------------------------------------------------------------


def test_names_become_ids() -> None:
    assert ids_of(["views", 700, "orders", 600], NAMES.get) == ((600, 601, 700), "")
    ids, reason = ids_of(["orders", "nothing"], NAMES.get)
    assert ids == ()
    assert "unknown space 'nothing'" in reason
    assert "not a user space" in ids_of(["_space"], NAMES.get)[1]


@pytest.mark.parametrize(
    ("held", "wanted", "is_served"),
    [
        ((), [], True),
        ((), [600], True),
        ((600, 601), [600], True),
        ((600, 601), [280, 601], True),
        ((600, 601), [280], True),
        ((600, 601), [], False),
        ((600, 601), [600, 602], False),
    ],
)
def test_no_client_gets_more_than_the_budget(held: Any, wanted: Any, is_served: bool) -> None:
    reason = refusal_to_serve(held, wanted)
    assert is_served == (not reason)
    assert is_served or "600, 601" in reason


@pytest.mark.parametrize(
    ("listed", "words"),
    [
        (("orders",), ""),
        ((600,), ""),
        (("views",), "lists views"),
        (("orders", "views"), "empty the directory"),
        ((), "lists none"),
    ],
)
def test_what_was_left_out_once_is_missing_for_ever(
    listed: tuple[str | int, ...], words: str
) -> None:
    held = Ballot(spaces=(600,), listed_spaces=("orders",))
    reason = refusal_to_start(held, ConsensusSettings(role="anonymous", spaces=listed), NAMES.get)
    assert bool(words) == bool(reason)
    assert words in reason
    assert "holds all spaces" in refusal_to_start(
        Ballot(), ConsensusSettings(role="anonymous", spaces=("orders",)), NAMES.get
    )
    assert not refusal_to_start(Ballot(), ConsensusSettings(), NAMES.get)


def test_a_renamed_space_is_still_the_one_that_is_held() -> None:
    held = Ballot(spaces=(600,), listed_spaces=("orders",))
    settings = ConsensusSettings(role="anonymous", spaces=("orders",))
    assert not refusal_to_start(held, settings, {"orders": 700, "old": 600}.get)
    renamed = ConsensusSettings(role="anonymous", spaces=("old",))
    assert not refusal_to_start(held, renamed, {"orders": 700, "old": 600}.get)


def test_only_an_anonymous_replica_has_a_list() -> None:
    with pytest.raises(ValueError, match="empty data directory"):
        ConsensusSettings(role="async", spaces=("orders",))
    with pytest.raises(ValueError, match="not the id of a user space"):
        ConsensusSettings(role="anonymous", spaces=(280,))
    listed = ConsensusSettings(role="anonymous", spaces=("orders",))
    ballot = Ballot(spaces=(600,), listed_spaces=("orders",))
    assert "empty data directory" in refusal_to_change(
        ballot, listed, ConsensusSettings(role="async")
    )
    everything = ConsensusSettings(role="anonymous")
    assert refusal_to_change(Ballot(), everything, listed)
    assert not refusal_to_change(Ballot(), everything, ConsensusSettings(role="async"))
    assert not refusal_to_change(Ballot(), ConsensusSettings(), ConsensusSettings(priority=1))


def test_the_list_is_part_of_the_ballot_and_costs_others_nothing() -> None:
    ballot = Ballot(term=3, spaces=(600, 601), listed_spaces=("orders", 601))
    assert Ballot.decode(ballot.encode()) == ballot
    assert b"spaces" not in Ballot(term=3).encode()


# --- simulated members ------------------------------------------------------------------------


def replica_of(shell: Shell) -> Replica:
    assert shell.node is not None
    return shell.node.replica


def context_of(shell: Shell) -> Context:
    assert shell.node is not None
    return shell.node.context


def confirmed_of(shell: Shell) -> int:
    index: int = context_of(shell).limbo.confirmed_index
    return index


def follows(shell: Shell, other: Shell) -> bool:
    return 0 < confirmed_of(other) == confirmed_of(shell)


def rows_of(shell: Shell, space: int) -> list[Any]:
    assert shell.node is not None
    index = shell.node.database.space(space).indexes[0]
    return [msgpack.unpackb(packed) for _, packed in index.entries()]


def select(world: World, shell: Shell, space: int, **more: object) -> fx.Answer:
    request = build_body(space, key=[], limit=100, **more)
    answer = world.ask(shell, lambda sync: fx.Request(7, sync, 1, request, 0, "admin", None))
    assert answer is not None
    return answer


def write_both(world: World, first: int, rows: int) -> None:
    for key in range(first, first + rows):
        world.insert(SPACE, [key, f"a{key}", 0])
        world.insert(ASYNC_SPACE, [key, f"b{key}", 0])


def cluster(seed: int, **settings: object) -> tuple[World, Shell]:
    world = World(seed)
    world.bootstrap(3, **settings)
    leader = world.leader()
    assert leader is not None
    return world, leader


@pytest.mark.parametrize("listed", [(f"s{SPACE}",), (SPACE,)])
def test_a_filtered_replica_holds_its_spaces_and_every_index(listed: tuple[str | int, ...]) -> None:
    world, leader = cluster(1)
    write_both(world, 1, 3)
    reader = world.add("anonymous", spaces=listed)
    reader.start()
    assert world.run_for(3 * SECOND, lambda: follows(reader, leader))
    write_both(world, 4, 3)
    world.insert(SystemSpace.SPACE, [700, 1, "later", "memtx", 0, {}, []])
    assert world.run_for(3 * SECOND, lambda: follows(reader, leader))
    assert context_of(reader).ballot.spaces == (SPACE,)
    assert rows_of(reader, SPACE) == rows_of(leader, SPACE)
    assert len(rows_of(reader, SPACE)) == 6
    assert rows_of(reader, ASYNC_SPACE) == []
    assert rows_of(reader, 280) == rows_of(leader, 280)
    assert context_of(reader).tail.vclock == context_of(leader).tail.vclock
    for isolation in (0, 4):
        assert len(select(world, reader, SPACE, isolation=isolation).tuples) == 6
        refused = select(world, reader, ASYNC_SPACE, isolation=isolation)
        assert refused.code == ErrorCode.UNSUPPORTED
        assert f"'s{ASYNC_SPACE}' is not available" in refused.reason
    assert select(world, reader, 999).code == ErrorCode.NO_SUCH_SPACE
    for again in (False, True):
        reader.stop(power_loss=again)
        write_both(world, 100 + 10 * again, 2)
        reader.start()
        assert world.run_for(3 * SECOND, lambda: follows(reader, leader))
        assert rows_of(reader, SPACE) == rows_of(leader, SPACE)
        assert rows_of(reader, ASYNC_SPACE) == []
    assert world.counters["event snapshot_taken"] == 3  # two members and the reader, once each


def test_a_list_waits_for_the_space_that_it_names() -> None:
    world, leader = cluster(2)
    reader = world.add("anonymous", spaces=("later",))
    reader.start()
    world.run_for(2 * SECOND)
    assert context_of(reader).ballot.spaces == ()
    assert not context_of(reader).has_origin
    assert world.counters["event spaces_unknown"] in range(1, 8)
    world.insert(SystemSpace.SPACE, [700, 1, "later", "memtx", 0, {}, []])
    world.insert(SystemSpace.INDEX, [700, 0, "pk", "tree", {"unique": True}, [[0, "unsigned"]]])
    world.insert(700, [1])
    write_both(world, 1, 1)
    assert world.run_for(3 * SECOND, lambda: follows(reader, leader))
    assert rows_of(reader, 700) == [[1]]
    assert rows_of(reader, SPACE) == []


def cut_off(world: World, reader: Shell, all_but: Shell) -> None:
    for shell in world.alive():
        if shell not in (reader, all_but):
            world.network.cut(shell, reader)
            world.network.cut(reader, shell)
    world.network.break_cut_off()


def test_who_may_follow_a_filtered_replica() -> None:
    world, leader = cluster(3)
    write_both(world, 1, 3)
    source = world.add("anonymous", spaces=(SPACE, ASYNC_SPACE + 1))
    source.start()
    assert world.run_for(3 * SECOND, lambda: follows(source, leader))
    same = world.add("anonymous", spaces=(f"s{SPACE}",))
    other = world.add("anonymous", spaces=(ASYNC_SPACE,))
    full = world.add("anonymous")
    for reader in (same, other, full):
        cut_off(world, reader, source)
        reader.start()
    for reader in (other, full):
        world.network.cut(same, reader)
        world.network.cut(reader, same)
    cut_off(world, full, source)
    write_both(world, 4, 3)
    assert world.run_for(3 * SECOND, lambda: follows(same, leader))
    assert rows_of(same, SPACE) == rows_of(leader, SPACE)
    for reader in (other, full):
        assert not context_of(reader).has_origin
        assert "holds only the spaces 512, 5" in replica_of(reader).source.refused
    world.network.heal()
    assert world.run_for(5 * SECOND, lambda: follows(full, leader) and follows(other, leader))
    assert rows_of(full, ASYNC_SPACE) == rows_of(leader, ASYNC_SPACE) == rows_of(other, ASYNC_SPACE)
    assert rows_of(other, SPACE) == []


def test_a_registered_replica_cannot_ask_for_a_list() -> None:
    world, leader = cluster(4)
    follower = next(shell for shell in world.alive() if shell is not leader)
    sent: list[Any] = []
    found = context_of(leader).link_to(follower.uuid)
    assert found is not None
    link = found.number
    node = leader.node
    assert node is not None

    def tell(message: PeerMessage) -> None:
        leader_out = node.step(leader.now_ns(), 1e9, [fx.Received(link, message)])
        sent.extend(effect.message for effect in leader_out if type(effect) is fx.Send)

    term = context_of(leader).term
    for is_anonymous in (False, True):
        tell(msg.Subscribe(99, term, is_anonymous, [SPACE]))
        refusal = next(m for m in sent if type(m) is msg.Refusal)
        assert refusal.code == ErrorCode.UNSUPPORTED
        assert "list of spaces" in refusal.reason
        sent.clear()


def _configure(arguments: dict[str, Any], sync: int) -> fx.Command:
    return fx.Command(7, sync, "configure", arguments)


def test_a_filtered_replica_is_not_registered() -> None:
    world, leader = cluster(5)
    reader = world.add("anonymous", spaces=(SPACE,))
    reader.start()
    assert world.run_for(3 * SECOND, lambda: follows(reader, leader))
    for wanted in ({"role": "async", "spaces": []}, {"role": "voter"}, {"spaces": [600]}):
        answer = world.ask(reader, partial(_configure, wanted))
        assert answer is not None
        assert answer.code in (ErrorCode.UNSUPPORTED, ErrorCode.ILLEGAL_PARAMS)
        assert "empty data directory" in answer.reason
    # Even if it sends REGISTER, the leader refuses it: the leader knows the list of its link.
    assert reader.node is not None
    link = context_of(leader).link_to(reader.uuid)
    for number in list(context_of(leader).links):
        if replica_of(leader).relays.list_of(number):
            link = context_of(leader).links[number]
    assert link is not None
    leader.step([fx.Received(link.number, msg.Register(1, "reader", "async", 1))])
    world.run_for(SECOND)
    assert context_of(leader).limbo.configuration.by_uuid(reader.uuid) is None


def joined_reader() -> tuple[World, Shell, Shell]:
    """Return a world with rows of two spaces, its leader, and a reader of one of the spaces."""
    world, leader = cluster(6)
    write_both(world, 1, 3)
    reader = world.add("anonymous", spaces=(SPACE,))
    reader.start()
    assert world.run_for(3 * SECOND, lambda: follows(reader, leader))
    world.run_for(SECOND)  # until the disk has the snapshot of the join
    return world, leader, reader


def test_a_filtered_divergent_state_is_replaced_by_a_filtered_one() -> None:
    world, leader, reader = joined_reader()
    repair = replica_of(reader).repair
    repair.open(confirmed_of(reader))
    assert repair.is_state_wrong
    assert world.run_for(5 * SECOND, lambda: not repair.is_state_wrong)
    assert world.run_for(5 * SECOND, lambda: not repair.is_open)
    assert rows_of(reader, SPACE) == rows_of(leader, SPACE)
    assert rows_of(reader, ASYNC_SPACE) == []


def test_repaired_state_contains_listed_spaces_only_although_the_source_sends_none() -> None:
    """Other members do not know the list of a replica that does not follow them."""
    world, leader, reader = joined_reader()
    repair = replica_of(reader).repair
    replica_of(leader).repair.open(confirmed_of(leader))  # so it sends no state
    repair.open(confirmed_of(reader))
    world.run_for(5 * SECOND)
    assert rows_of(reader, ASYNC_SPACE) == []
    other = next(shell for shell in world.alive() if shell not in (reader, leader))
    world.command(other, "nominate", term=context_of(other).term)
    assert world.run_for(10 * SECOND, lambda: not repair.is_open)
    assert rows_of(reader, SPACE) == rows_of(leader, SPACE)
    assert rows_of(reader, ASYNC_SPACE) == []


# --- whole schedules --------------------------------------------------------------------------


def filtered(add: Callable[..., Shell]) -> Callable[..., Shell]:
    """Return `add` with a list of one or two names or IDs of spaces for each anonymous replica."""
    lists: list[tuple[str | int, ...]] = [(f"s{SPACE}",), (ASYNC_SPACE,), (SPACE, ASYNC_SPACE)]
    numbers = count()

    def added(world: World, role: str = "voter", **settings: object) -> Shell:
        if role == "anonymous":
            settings["spaces"] = lists[next(numbers) % len(lists)]
        return add(world, role, **settings)

    return added


@pytest.mark.parametrize("first", [0, 100, 200])
def test_schedules_with_filtered_replicas(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults of every kind occur. The ledger checks each row, and the end compares states (F1)."""
    bootstrap = World.bootstrap

    def with_readers(world: World, voters: int, **settings: object) -> None:
        bootstrap(world, voters, **settings)
        for _ in range(2):
            world.add("anonymous").start()
        # A third one joins when its snapshot must omit rows.
        world.after(3 * SECOND, lambda: world.add("anonymous").start())
        world.run_for(100 * MILLISECOND)

    monkeypatch.setattr(World, "add", filtered(World.add))
    monkeypatch.setattr(World, "bootstrap", with_readers)
    monkeypatch.setattr("qsync_sim.schedule.DISASTERS", 0.0)  # they destroy the readers
    for seed in range(first, first + 5):
        world = Schedule(seed).run()
        readers = [shell for shell in world.alive() if shell.settings.spaces]
        assert any(context_of(shell).ballot.spaces for shell in readers)
