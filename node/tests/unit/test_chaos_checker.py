"""The checker of the campaign on journals finds each violation that is planted into its inputs."""

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qsync_testing.brokers import checker

JOURNAL = "a/journal"
LedgerEntry = dict[str, Any]


class CheckedScene:
    """A journal with five appends, and its ledger; each test damages one of them.

    Attributes:
        contents: what two brokers return.
        entries: the ledger.
    """

    def __init__(self) -> None:
        self.records = {name: checker.record_of(name, name.encode() * 9) for name in "abcde"}
        self.contents = dict.fromkeys(("one", "two"), b"".join(self.records.values()))
        self.entries: list[LedgerEntry] = []
        at = 0
        for number, (name, record) in enumerate(self.records.items()):
            place = {"begin": at, "end": at + len(record)}
            at += len(record)
            outcome = "unknown" if name == "d" else "acknowledged"
            self.add(name, outcome, number, **(place if outcome == "acknowledged" else {}))
        self.add("x", "unknown", 9)
        self.add("y", "refused", 9)
        self.add("z", "broken", 9)
        for begin, end in ((0, at), (len(self.records["a"]), at), (7, at)):
            self.read(begin, self.contents["one"][begin:end])
        self.read(3, self.contents["one"][3:50], is_whole=False)

    def add(self, name: str, outcome: str, number: int, **fields: int) -> None:
        entry = {"kind": "append", "id": name, "journal": JOURNAL, "outcome": outcome}
        self.entries.append({**entry, "started": number, "ended": number + 0.5, **fields})

    def read(self, begin: int, data: bytes, is_whole: bool = True, **fields: int) -> None:
        digest = hashlib.sha1(data).hexdigest()
        entry = {"kind": "read", "journal": JOURNAL, "broker": "one", "offset": begin}
        entry |= {"begin": begin, "length": len(data), "sha1": digest, "is_whole": is_whole}
        self.entries.append({**entry, **fields})

    def append(self, name: str) -> LedgerEntry:
        return next(one for one in self.entries if one.get("id") == name)

    def set_all(self, content: bytes) -> None:
        self.contents = dict.fromkeys(self.contents, content)

    def without(self, name: str) -> bytes:
        return b"".join(record for one, record in self.records.items() if one != name)

    def check(self) -> list[str]:
        found: list[str] = checker.check(self.entries, {JOURNAL: self.contents})
        return found


def test_correct_journal_has_no_violation() -> None:
    assert CheckedScene().check() == []


def lose_the_last_append(scene: CheckedScene) -> None:
    scene.set_all(scene.without("e"))


def lose_an_append(scene: CheckedScene) -> None:
    scene.set_all(scene.without("b"))


def lose_at_one_broker(scene: CheckedScene) -> None:
    scene.contents["two"] = scene.without("e")


def change_at_one_broker(scene: CheckedScene) -> None:
    scene.contents["two"] = scene.contents["two"].replace(b"ccc", b"cxc", 1)


def change_a_byte(scene: CheckedScene) -> None:
    scene.set_all(scene.contents["one"].replace(b"bbb", b"bxb", 1))


def keep_a_part(scene: CheckedScene) -> None:
    scene.set_all(scene.contents["one"] + scene.records["a"][:-3])


def append_twice(scene: CheckedScene) -> None:
    scene.set_all(scene.contents["one"] + scene.records["d"])


def carry_out_a_refused_append(scene: CheckedScene) -> None:
    scene.set_all(scene.contents["one"] + checker.record_of("y", b"y"))


def carry_out_a_broken_append(scene: CheckedScene) -> None:
    scene.set_all(scene.contents["one"] + checker.record_of("z", b"z"))


def invent_an_append(scene: CheckedScene) -> None:
    scene.set_all(scene.contents["one"] + checker.record_of("w", b"w"))


def acknowledge_another_offset(scene: CheckedScene) -> None:
    scene.append("c")["begin"] += 1


def acknowledge_late_appends_first(scene: CheckedScene) -> None:
    scene.append("b")["started"] = 7


def read_other_bytes(scene: CheckedScene) -> None:
    scene.read(0, b"other bytes", is_whole=False)


def read_lost_bytes(scene: CheckedScene) -> None:
    scene.read(0, scene.contents["one"] + b"more")


def read_a_part(scene: CheckedScene) -> None:
    scene.read(0, scene.contents["one"][:-1])


def read_elsewhere(scene: CheckedScene) -> None:
    scene.read(3, scene.contents["one"][3:], offset=0)


VIOLATIONS: list[tuple[Callable[[CheckedScene], None], str]] = [
    (lose_the_last_append, "no byte after .* but 1 acknowledged appends begin at"),
    (lose_an_append, "acknowledged append b at .* is lost"),
    (lose_at_one_broker, "broker two has other bytes at"),
    (change_at_one_broker, "broker two has other bytes at"),
    (change_a_byte, "append b at offset .* has other bytes"),
    (keep_a_part, "a part of append a is at offset"),
    (append_twice, "append d is there twice"),
    (carry_out_a_refused_append, "refused append y took effect"),
    (carry_out_a_broken_append, "broken append z took effect"),
    (invent_an_append, "no writer has appended w"),
    (acknowledge_another_offset, "append c was acknowledged at"),
    (acknowledge_late_appends_first, "append b at .* is before one that it follows"),
    (read_other_bytes, "had other bytes"),
    (read_lost_bytes, "had bytes that are lost"),
    (read_a_part, "ended within an append"),
    (read_elsewhere, "should begin at 0"),
]


@pytest.mark.parametrize(
    ("plant", "text"), VIOLATIONS, ids=lambda one: getattr(one, "__name__", "")
)
def test_checker_finds_planted_violation(plant: Callable[[CheckedScene], None], text: str) -> None:
    scene = CheckedScene()
    plant(scene)
    assert any(re.search(text, problem) for problem in scene.check())


def test_incomplete_last_line_of_a_ledger_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    path.write_text('{"kind": "read"}\n{"kind": "app')
    assert checker.read_ledgers([path]) == [{"kind": "read"}]
