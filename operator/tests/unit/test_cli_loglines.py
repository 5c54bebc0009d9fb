"""Lines of logs and of `qsync cat`, as people read them."""

import re

import pytest

from qsync_cli.cat import shown_as_text
from qsync_cli.loglines import readable

TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}"
LINE = '{"time": "2026-11-27T15:47:30.966Z", "level": "%s", "node": "orders-1", "event": "%s"%s}'


@pytest.mark.parametrize(
    ("level", "event", "rest", "expected"),
    [
        ("info", "leader", ', "term": 2, "kept": 20', "leader term=2 kept=20"),
        ("warning", "step_down", ', "reason": "a reason"', 'WARNING step_down reason="a reason"'),
        ("info", "note", ', "text": "\\u001b[31m"', "note text=\\u001b[31m"),
        ("info", "note", ', "list": [1, "ü"], "none": null', 'note list=[1, "ü"] none=null'),
    ],
)
def test_line_of_a_log_is_readable(level: str, event: str, rest: str, expected: str) -> None:
    text = readable(LINE % (level, event, rest))
    assert re.fullmatch(f"{TIME} {re.escape(expected)}", text), text


@pytest.mark.parametrize("line", ["Traceback (most recent call last):", "[1, 2]", '{"a": 1}', ""])
def test_other_line_stays_as_it_is(line: str) -> None:
    assert readable(line) == line


@pytest.mark.parametrize(
    ("kind", "body", "expected"),
    [
        (40, {"2": 1, "3": 11, "83": 4, "113": 11},
         'CONFIRM  TIME {"replica_id":1,"lsn":11,"term":4,"index":11}'),
        (31, [None, 1, 11], 'PROMOTE  TIME {"replica_id":1,"lsn":11}'),
        (30, {"0": 5, "1": 1}, 'RAFT     TIME {"term":5,"vote":1}'),
        ("REPLACE", {"space_id": 512, "tuple": [1]}, 'REPLACE  TIME {"space_id":512,"tuple":[1]}'),
        (999, {}, "999      TIME"),
    ],
)  # fmt: skip
def test_row_of_a_file_names_its_type_its_keys_and_its_time(
    kind: int | str, body: object, expected: str
) -> None:
    header = {"lsn": 12, "replica_id": 1, "type": kind, "timestamp": 1795793825.0235}
    text = shown_as_text({"HEADER": header, "BODY": body})
    assert re.sub(TIME, "TIME", text).strip() == f"1:12 {expected}"


@pytest.mark.parametrize("timestamp", [1e20, float("nan"), float("inf")])
def test_row_whose_timestamp_is_no_time_is_shown(timestamp: float) -> None:
    header = {"lsn": 1, "replica_id": 1, "type": "INSERT", "timestamp": timestamp}
    assert shown_as_text({"HEADER": header}) == f"         1:1 INSERT   timestamp={timestamp}"
