"""The comparison of a ledger of writes with the rows of a member."""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from qsync_cli.data.connecting import ConnectionTarget
from qsync_cli.failure import Failure
from qsync_cli.output import plain_table
from qsync_cli.proof import ledger, verify
from qsync_cli.proof.ledger import (
    CHANGED,
    INVENTED,
    LOST,
    RESURRECTED,
    IncompleteLedgerError,
    LedgerFile,
    WritePause,
    WrongKeys,
    key_of,
    open_to_append,
)
from qsync_cli.proof.verify import (
    CATCH_UP_S,
    INCOMPLETE,
    CatchUp,
    MemberFinding,
    sentence_of,
    table_of,
)
from qsync_client import Index, Space
from qsync_client.ledger import (
    COMMITTED,
    REFUSED,
    ROLLED_BACK,
    UNKNOWN,
    LedgerLineError,
    LedgerWrite,
    write_of,
)


def write(
    outcome: str,
    value: str | None = "a",
    started_s: float = 0.0,
    ended_s: float | None = None,
    op: str = "",
) -> LedgerWrite:
    return LedgerWrite(
        None, [1], outcome, op, value=value, started_s=started_s,
        ended_s=started_s if ended_s is None else ended_s,
    )  # fmt: skip


def compare(
    writes: Iterable[LedgerWrite], rows: dict[str, list[Any]], *, is_exclusive: bool
) -> dict[str, list[str]]:
    """Return the wrong keys by kind of problem."""
    with LedgerFile() as file:
        file.add(enumerate(writes, 1))
        count, found = file.compare([None], rows.items(), is_exclusive=is_exclusive)
    assert count == len(rows)
    return {kind: wrong.keys for kind, wrong in found.items()}


def problem(found: str | None, *writes: LedgerWrite) -> str:
    rows = {} if found is None else {key_of([1]): [1, found]}
    return next(iter(compare(writes, rows, is_exclusive=False)), "")


@pytest.mark.parametrize(
    ("outcome", "found", "expected"),
    [
        (COMMITTED, "a", ""), (COMMITTED, None, LOST), (COMMITTED, "b", CHANGED),
        (UNKNOWN, "a", ""), (UNKNOWN, None, ""), (UNKNOWN, "b", CHANGED),
        (REFUSED, None, ""), (REFUSED, "a", RESURRECTED), (ROLLED_BACK, "a", RESURRECTED),
        ("not sent", None, ""), ("not sent", "a", RESURRECTED),
    ],
)  # fmt: skip
def test_outcome_of_a_single_write_decides_about_its_row(
    outcome: str, found: str | None, expected: str
) -> None:
    assert problem(found, write(outcome)) == expected


def test_last_committed_write_of_a_key_must_be_there() -> None:
    first, second = write(COMMITTED, "a", 1, 2), write(COMMITTED, "b", 3, 4)
    assert problem("b", first, second) == ""
    assert problem("a", first, second) == CHANGED
    assert problem("b", second, first) == "", "times decide, not the order of the lines"
    assert problem(None, first, second) == LOST


def test_either_of_two_concurrent_writes_may_be_the_last() -> None:
    first, second = write(COMMITTED, "a", 1, 4), write(COMMITTED, "b", 3, 5)
    assert problem("a", first, second) == problem("b", first, second) == ""


def test_unknown_write_may_take_effect_after_a_later_one() -> None:
    unknown, later = write(UNKNOWN, "a", 1, 2), write(COMMITTED, "b", 3, 4)
    assert problem("a", unknown, later) == problem("b", unknown, later) == ""
    assert problem(None, unknown, later) == LOST


def test_committed_deletion_leaves_no_row() -> None:
    inserted = write(COMMITTED, "a", 1, 2)
    deleted = write(COMMITTED, None, 3, 4, op="delete")
    assert problem(None, inserted, deleted) == ""
    assert problem("a", inserted, deleted) == CHANGED
    unknown = write(UNKNOWN, None, 3, 4, op="delete")
    assert problem(None, inserted, unknown) == problem("a", inserted, unknown) == ""


def test_row_without_a_line_is_a_problem_in_an_exclusive_space_only() -> None:
    rows = {key_of([1]): [1, "a"], key_of([2]): [2, "b"]}
    assert compare([write(COMMITTED)], rows, is_exclusive=False) == {}
    assert compare([write(COMMITTED)], rows, is_exclusive=True) == {INVENTED: [key_of([2])]}


def test_whole_rows_and_composite_keys_are_compared() -> None:
    one = write_of({"key": ["a", 2], "row": ["a", 2, 4.5], "outcome": "committed"}, 1)
    assert compare([one], {key_of(["a", 2]): ["a", 2, 4.5]}, is_exclusive=True) == {}
    changed = compare([one], {key_of(["a", 2]): ["a", 2, 5]}, is_exclusive=True)
    assert changed == {CHANGED: [key_of(["a", 2])]}


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ('{"outcome": "committed"}', "has no key"),
        ('{"id": 1, "outcome": "done"}', "use one of committed"),
        ('{"id": 1, "outcome": "unknown", "row": 3}', "correct `row`"),
        ('{"id": 1, "outcome": "unknown", "started": "today"}', "invalid time"),
        ('{"id": 1, "outcome": "unknown", "started": NaN}', "invalid time"),
        ('{"id": 1, "outcome": "unknown", "space": {}}', "use a name or an id in `space`"),
        ('{"id": 1, "outcome": "unknown", "space": true}', "use a name or an id in `space`"),
        ('{"id": 1, "outcome": "unknown", "space": -1}', "use a name or an id in `space`"),
        ('{"id": 1, "key": 2, "outcome": "unknown"}', "different values of `id` and `key`"),
        ('{"id": 1, "outcome": "committed", "op": "updated"}', "has the op .*use one of insert"),
        ("[1]", "not a JSON object"),
        ("{", "not a JSON object"),
    ],
)
def test_invalid_line_is_named_by_its_number(tmp_path: Path, line: str, text: str) -> None:
    file = tmp_path / "ledger.jsonl"
    file.write_text(f'{{"id": 1, "outcome": "unknown"}}\n{line}\n')
    with pytest.raises(LedgerLineError, match=f"line 2 .*{text}"):
        LedgerFile.read(file)


def test_incomplete_last_line_of_a_killed_writer_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "ledger.jsonl"
    file.write_text('{"id": 1, "outcome": "unknown"}\n{"id": 2, "outc')
    assert LedgerFile.read(file).outcomes == {"unknown": 1}


@pytest.mark.parametrize("cut", [1, 10, 30])
def test_complete_last_line_without_a_newline_is_checked(tmp_path: Path, cut: int) -> None:
    file = tmp_path / "ledger.jsonl"
    lines = ['{"id": 1, "outcome": "unknown"}', '{"id": 2, "outcome": "committed"}']
    file.write_text("\n".join(lines))
    assert LedgerFile.read(file).outcomes == {"unknown": 1, "committed": 1}
    file.write_text("\n".join(lines)[:-cut])
    assert LedgerFile.read(file).outcomes == {"unknown": 1}


@pytest.mark.parametrize("text", [None, "", '{"id": 1}\n'])
def test_complete_ledger_is_continued(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "ledger.jsonl"
    if text is not None:
        file.write_text(text)
    with open_to_append(file) as lines:
        lines.write("more\n")
    assert file.read_text() == f"{text or ''}more\n"


@pytest.mark.parametrize("text", ['{"id": 1', '{"id": "\N{LATIN SMALL LETTER E WITH ACUTE}'])
def test_ledger_with_an_incomplete_line_is_not_continued(tmp_path: Path, text: str) -> None:
    file = tmp_path / "ledger.jsonl"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(IncompleteLedgerError, match="no newline"):
        open_to_append(file)
    assert file.read_text(encoding="utf-8") == text


def test_equal_numbers_are_one_key() -> None:
    one = write_of({"id": 7.0, "outcome": "committed"}, 1)
    assert compare([one], {key_of([7]): [7, "a"]}, is_exclusive=True) == {}


def test_line_that_is_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file without newlines must not fill the memory."""
    monkeypatch.setattr("qsync_client.ledger.LINE_BYTES_MAX", 100)
    file = tmp_path / "ledger.jsonl"
    file.write_text('{"id": 1, "outcome": "unknown"}\n' + "x" * 200)
    with pytest.raises(LedgerLineError, match="line 2 is longer than"):
        LedgerFile.read(file)


def test_keys_are_counted_and_the_first_ones_are_named_in_their_order() -> None:
    writes = [LedgerWrite(None, [number], COMMITTED) for number in range(100, 0, -1)]
    with LedgerFile() as file:
        file.add(enumerate(writes, 1))
        _, found = file.compare([None], (), is_exclusive=False)
    assert found[LOST].count == 100
    assert found[LOST].keys == [key_of([number]) for number in range(1, ledger.KEYS_SHOWN + 1)]
    assert found[LOST].lines[0] == 100


def test_rows_of_each_member_are_compared_alone() -> None:
    with LedgerFile() as file:
        file.add([(1, write(COMMITTED))])
        rows = {key_of([1]): [1, "a"]}
        assert file.compare([None], rows.items(), is_exclusive=True) == (1, {})
        count, found = file.compare([None], (), is_exclusive=True)
    assert (count, list(found)) == (0, [LOST])


@pytest.mark.parametrize(
    ("clusters", "chosen", "lost"),
    [
        (["shop", "bank", ""], "shop", [1, 3]),
        (["shop", "bank", ""], "copy", [1, 2, 3]),
        (["shop", "shop", ""], "copy", [1, 2, 3]),
    ],
)
def test_lines_of_another_cluster_are_not_compared(
    clusters: list[str], chosen: str, lost: list[int]
) -> None:
    """A restored cluster may have another name than the lines."""
    with LedgerFile() as file:
        file.add(
            (number, LedgerWrite(None, [number], COMMITTED, cluster=name))
            for number, name in enumerate(clusters, 1)
        )
        file.keep(chosen)
        _, found = file.compare([None], (), is_exclusive=False)
        assert found[LOST].lines == lost
        assert file.outcomes == {COMMITTED: len(lost)}


def test_lines_of_a_space_by_name_and_by_id_are_one_ledger() -> None:
    writes = [
        LedgerWrite("orders", [1], COMMITTED, value="a", started_s=1, ended_s=2),
        LedgerWrite(512, [1], COMMITTED, value="b", started_s=3, ended_s=4),
    ]
    with LedgerFile() as file:
        file.add(enumerate(writes, 1))
        rows = {key_of([1]): [1, "b"]}
        _, found = file.compare(["orders", 512], rows.items(), is_exclusive=True)
    assert found == {}


_MEASURED = """
import resource, sys
from pathlib import Path
from qsync_cli.proof.ledger import LedgerFile, key_of
file = LedgerFile.read(Path(sys.argv[1]))
count = sum(file.outcomes.values())
rows = ((key_of([n]), [n, "v" * 100]) for n in range(count))
print(file.compare([None], rows, is_exclusive=True)[1])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_memory_of_verify_does_not_grow_with_the_ledger(tmp_path: Path) -> None:
    """Ten times the lines, of which each key has one and one key has many."""
    peaks_kib = []
    for number, lines in enumerate((10_000, 100_000)):
        path = tmp_path / f"{number}.jsonl"
        with path.open("w") as file:
            for key in range(lines):
                one = {"id": key, "value": "v" * 100, "outcome": "committed"}
                file.write(json.dumps(one) + "\n")
        done = subprocess.run(
            [sys.executable, "-c", _MEASURED, str(path)],
            capture_output=True, text=True, check=True, timeout=100,
        )  # fmt: skip
        found, peak = done.stdout.splitlines()
        assert found == "{}"
        peaks_kib.append(int(peak))
    assert peaks_kib[1] - peaks_kib[0] < 8 << 10, peaks_kib


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("a", 'line 1 has the key ["a"] that is no unsigned'),
        (-1, "line 1 has the key [-1] that is no unsigned"),
        ([1, 2], "line 1 has the key [1, 2] with 2 parts, and the index has 1"),
    ],
)
def test_key_of_another_type_is_refused_and_not_missing(key: object, text: str) -> None:
    index = Index(0, "primary", "tree", is_unique=True, fields=(0,), types=("unsigned",))
    space = Space(512, "orders", (), (index,))
    with LedgerFile() as file:
        file.add([(1, write_of({"id": key, "outcome": "committed"}, 1))])
        _, found = file.compare([None], (), is_exclusive=False)
    with pytest.raises(Failure) as caught:
        verify.refuse_impossible_keys(space, found)
    assert text in str(caught.value)
    assert "space orders" in str(caught.value)


def test_key_of_the_right_type_is_missing() -> None:
    types = ("unsigned", "double", "string", "uuid", "scalar", "any")
    index = Index(0, "primary", "tree", is_unique=True, fields=tuple(range(6)), types=types)
    key = [1, 2.0, "a", {"$uuid": "0f3cd8a2-2f4e-4f3a-9d53-6d6f6a0e7c11"}, 1.5, None]
    verify.refuse_impossible_keys(
        Space(512, "orders", (), (index,)), {LOST: WrongKeys(1, [key_of(key)], [1])}
    )


def test_findings_fit_eighty_columns() -> None:
    wrong = WrongKeys(12_345, [key_of(["x" * 500])], [1])
    problems = {"a" * 200: {LOST: wrong, RESURRECTED: wrong}}
    found = [
        MemberFinding("orders-production-0", "", 1_000_000, problems),
        MemberFinding("orders-production-1", "", 0, {}, "the request failed: " + "why " * 50),
        MemberFinding("orders-production-2", "", 5),
    ]
    lines = plain_table(["MEMBER", "ROWS", "FINDING"], table_of(found)).splitlines()
    assert max(map(len, lines)) <= 80
    assert sum("orders-production-0" in line for line in lines) == 1
    assert lines[-1].split(maxsplit=2) == ["orders-production-2", "5", "as recorded"]


@pytest.mark.parametrize(("archive", "text"), [
    (True, "qsync audit demo"), (False, "demo has no archive"),
])  # fmt: skip
def test_an_audit_is_proposed_for_a_cluster_with_an_archive_only(archive: bool, text: str) -> None:
    target = ConnectionTarget("demo")
    for found in (
        MemberFinding("demo-0"),
        MemberFinding("demo-0", problems={"a": {LOST: WrongKeys(1, ["[1]"], [1])}}),
    ):
        document = verify.document_of(
            Path("own.jsonl"), target, {COMMITTED: 1}, [found], has_archive=archive
        )
        assert text in document["nextStep"]
        assert ("qsync audit" in document["nextStep"]) == archive


def test_ledger_without_an_acknowledged_write_proves_nothing() -> None:
    found = [MemberFinding("demo-0")]
    document = verify.document_of(
        Path("own.jsonl"), ConnectionTarget("demo"), {REFUSED: 3}, found, has_archive=True
    )
    assert document["verdict"] == INCOMPLETE
    assert "nothing is proved" in sentence_of(document, found)
    assert "record acknowledged writes" in document["nextStep"]


@pytest.mark.parametrize(("silent", "rest"), [(1, "; the others agree with the ledger."), (2, ".")])
def test_silent_members_agree_with_nothing(silent: int, rest: str) -> None:
    found = [MemberFinding(str(n), error="refused" if n < silent else "") for n in range(2)]
    text = sentence_of({"verdict": INCOMPLETE, "outcomes": {}}, found)
    assert text == f"{silent} of 2 members could not be read{rest}"


def test_pause_ends_with_the_first_write_that_began_after_the_fault() -> None:
    pause = WritePause(10.0)
    for outcome, started_s, ended_s in ((COMMITTED, 9.9, 10.05), (UNKNOWN, 10.1, 10.2)):
        pause.add(outcome, started_s, ended_s)
    assert pause.milliseconds is None
    for started_s, ended_s in ((10.1, 10.3), (10.2, 10.25)):
        pause.add(COMMITTED, started_s, ended_s)
    assert pause.milliseconds == pytest.approx(250)


class Lagging:
    """Members that each have the rows from a time on, and whose reads take long."""

    def __init__(self, read_s: float) -> None:
        self.now_s = 0.0
        self.catch_up = CatchUp(lambda: self.now_s, self.sleep)
        self._read_s = read_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def problems(self, from_s: float) -> list[str]:
        """Return the problems of a member that has the rows from `from_s` on."""

        def compare(has_rows: bool) -> tuple[int, dict[str, WrongKeys]]:
            return 1, {} if has_rows else {LOST: WrongKeys(1, ["[1]"], [1])}

        def read() -> bool:
            has_rows = self.now_s >= from_s
            self.now_s += self._read_s
            return has_rows

        return list(self.catch_up.settled(read, compare)[1])


def test_members_that_lag_have_the_time_to_catch_up_together() -> None:
    members = Lagging(read_s=0.01)
    assert [members.problems(from_s) for from_s in (3.0, 9.9, 60.0, 60.0)] == [
        [],
        [],
        [LOST],
        [LOST],
    ]
    assert members.now_s < CATCH_UP_S + 1


def test_read_that_began_before_the_time_to_catch_up_ended_decides_nothing() -> None:
    assert Lagging(read_s=15.0).problems(from_s=9.0) == []
