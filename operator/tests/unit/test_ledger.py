"""The comparison of a ledger of writes with the rows of a member."""

from pathlib import Path

import pytest

from qsync_cli.proof.ledger import (
    CHANGED,
    COMMITTED,
    INVENTED,
    LOST,
    REFUSED,
    RESURRECTED,
    ROLLED_BACK,
    UNKNOWN,
    LedgerLineError,
    LedgerWrite,
    compare,
    key_of,
    open_to_append,
    outage_ms,
    outcomes_of,
    read_operations,
    write_of,
)
from qsync_cli.proof.verify import INCOMPLETE, MemberFinding, sentence_of


def write(
    outcome: str,
    value: str | None = "a",
    started_s: float = 0.0,
    ended_s: float | None = None,
    is_deletion: bool = False,
) -> LedgerWrite:
    ended_s = started_s if ended_s is None else ended_s
    return LedgerWrite(
        None, key_of(1), outcome, is_deletion, None, value, started_s=started_s, ended_s=ended_s
    )


def problem(found: str | None, *writes: LedgerWrite) -> str:
    rows = {} if found is None else {key_of(1): [1, found]}
    problems = compare(writes, rows, is_exclusive=False)
    return next(iter(problems), "")


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
    deleted = write(COMMITTED, None, 3, 4, is_deletion=True)
    assert problem(None, inserted, deleted) == ""
    assert problem("a", inserted, deleted) == CHANGED
    unknown = write(UNKNOWN, None, 3, 4, is_deletion=True)
    assert problem(None, inserted, unknown) == problem("a", inserted, unknown) == ""


def test_row_without_a_line_is_a_problem_in_an_exclusive_space_only() -> None:
    rows = {key_of(1): [1, "a"], key_of(2): [2, "b"]}
    assert compare([write(COMMITTED)], rows, is_exclusive=False) == {}
    assert compare([write(COMMITTED)], rows, is_exclusive=True) == {INVENTED: [key_of(2)]}


def test_whole_rows_and_composite_keys_are_compared() -> None:
    one = write_of({"key": ["a", 2], "row": ["a", 2, 4.5], "outcome": "committed"})
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
        ("[1]", "not a JSON object"),
        ("{", "not a JSON object"),
    ],
)
def test_invalid_line_is_named_by_its_number(tmp_path: Path, line: str, text: str) -> None:
    file = tmp_path / "ledger.jsonl"
    file.write_text(f'{{"id": 1, "outcome": "unknown"}}\n{line}\n')
    with pytest.raises(LedgerLineError, match=f"line 2 .*{text}"):
        [write_of(one, number) for number, one in enumerate(read_operations(file), 1)]


def test_incomplete_last_line_of_a_killed_writer_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "ledger.jsonl"
    file.write_text('{"id": 1, "outcome": "unknown"}\n{"id": 2, "outc')
    assert outcomes_of(read_operations(file)) == {"unknown": 1}


@pytest.mark.parametrize("cut", [1, 10, 30])
def test_complete_last_line_without_a_newline_is_checked(tmp_path: Path, cut: int) -> None:
    file = tmp_path / "ledger.jsonl"
    lines = ['{"id": 1, "outcome": "unknown"}', '{"id": 2, "outcome": "committed"}']
    file.write_text("\n".join(lines))
    assert outcomes_of(read_operations(file)) == {"unknown": 1, "committed": 1}
    file.write_text("\n".join(lines)[:-cut])
    assert outcomes_of(read_operations(file)) == {"unknown": 1}


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
    with pytest.raises(LedgerLineError, match="no newline"):
        open_to_append(file)
    assert file.read_text(encoding="utf-8") == text


def test_equal_numbers_are_one_key() -> None:
    one = write_of({"id": 7.0, "outcome": "committed"})
    assert compare([one], {key_of(7): [7, "a"]}, is_exclusive=True) == {}


@pytest.mark.parametrize(("silent", "rest"), [(1, "; the others agree with the ledger."), (2, ".")])
def test_silent_members_agree_with_nothing(silent: int, rest: str) -> None:
    found = [MemberFinding(str(n), error="refused" if n < silent else "") for n in range(2)]
    text = sentence_of({"verdict": INCOMPLETE, "outcomes": {}}, found)
    assert text == f"{silent} of 2 members could not be read{rest}"


def test_outage_ends_with_the_first_write_that_began_after_the_kill() -> None:
    lines = [
        {"outcome": "committed", "started": 9.9, "ended": 10.05},
        {"outcome": "unknown", "started": 10.1, "ended": 10.2},
        {"outcome": "committed", "started": 10.1, "ended": 10.3},
        {"outcome": "committed", "started": 10.2, "ended": 10.25},
    ]
    assert outage_ms(lines, 10.0) == pytest.approx(250)
    assert outage_ms(lines[:2], 10.0) is None
