"""Specifications of journals, their labels, selectors, durations and postfixes."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qsync_broker.codecs import Codec
from qsync_broker.duration import format_duration, parse_duration
from qsync_broker.labels import (
    SELECTOR_LABELS_MAX,
    LabelSelector,
    LabelSet,
    Wanted,
    parse_selector,
    selector_of_journals,
    with_name,
)
from qsync_broker.postfix import Postfix, PostfixError
from qsync_broker.spec import FragmentSpec, JournalFlags, JournalSpec, name_problem, problem

SPEC = JournalSpec(
    "orders/eu",
    2,
    LabelSet.of([("content-type", "text/csv"), ("app.gazette.dev/region", "eu")]),
    FragmentSpec(
        1 << 20,
        Codec.SNAPPY,
        ("s3://bucket/folder/", "file:///other/"),
        90 * 10**9,
        86_400 * 10**9,
        600 * 10**9,
        'date={{ .Spool.FirstAppendTime.Format "2006-01-02" }}',
    ),
    JournalFlags.O_RDWR,
    1 << 20,
)


def test_row_contains_the_whole_specification() -> None:
    assert problem(SPEC) == ""
    assert JournalSpec.from_row(SPEC.name, SPEC.row_fields()) == SPEC


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"fragment": 7, "labels": [], "replication": "x", "flags": [], "max_append_rate": -1},
        {"labels": {"labels": [7, {}, {"value": "x"}]}, "flags": "O_EXCL"},
        {"fragment": {"length": -1, "stores": "file:///", "refresh_interval": "soon"}},
        {"fragment": {"compression_codec": "LZ4", "refresh_interval": 7, "retention": "-"}},
    ],
)
def test_any_row_has_a_usable_specification(fields: dict[str, Any]) -> None:
    spec = JournalSpec.from_row("orders/eu", fields)
    spec = spec._replace(fragment=spec.fragment._replace(length=1 << 20))
    assert spec == JournalSpec("orders/eu", fragment=FragmentSpec(1 << 20))


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("abc", "4 to 512 bytes"),
        ("a" * 513, "4 to 512 bytes"),
        ("/orders", "must be a path"),
        ("orders/", "must be a path"),
        ("orders//eu", "must be a path"),
        ("orders/../eu", "must be a path"),
        ("../orders", "must be a path"),
        ("./orders", "must be a path"),
        ("orders eu", "must consist of letters"),
        ("orders;eu", "must consist of letters"),
        ("orders\neu", "must consist of letters"),
    ],
)
def test_invalid_name_is_named(name: str, cause: str) -> None:
    assert cause in problem(SPEC._replace(name=name))


@pytest.mark.parametrize("name", ["abcd", "a/b-c_d+e.f=g%h", "заказы/ес", "a" * 512])
def test_valid_names(name: str) -> None:
    assert problem(SPEC._replace(name=name)) == ""
    assert name_problem(f"{name};anything at all") == ""


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"replication": 0}, "replication: must be 1 to 5, not 0"),
        ({"replication": 6}, "replication: must be 1 to 5, not 6"),
        ({"flags": 3}, "flags: use O_RDWR"),
        ({"max_append_rate": -1}, "max_append_rate: must not be negative"),
        ({"labels": [("x", "1")]}, "labels[x]: a name must have 2 to 64"),
        ({"labels": [("a b", "1")]}, "labels[a b]: a name must have 2 to 64"),
        ({"labels": [("name", "1")]}, "labels[name]: the name is reserved"),
        ({"labels": [("prefix", "1")]}, "labels[prefix]: the name is reserved"),
        ({"labels": [("tag", "a b")]}, "labels[tag]: a value must have"),
        ({"labels": [("tag", "a" * 1025)]}, "labels[tag]: a value must have"),
        ({"labels": [("tag", ""), ("tag", "x")]}, "labels[tag]: must have one value"),
        ({"labels": [("content-type", "csv")]}, "labels[content-type]: 'csv' is no media type"),
        (
            {"labels": [("app.gazette.dev/region", "a"), ("app.gazette.dev/region", "b")]},
            "labels[app.gazette.dev/region]: must have one value, not 2",
        ),
        (
            {"labels": [("app.gazette.dev/message-type", "x")]},
            "labels[app.gazette.dev/message-type]: requires the label content-type",
        ),
    ],
)
def test_invalid_specification_is_named(changes: dict[str, Any], cause: str) -> None:
    if "labels" in changes:
        changes = {"labels": LabelSet.of(changes["labels"])}
    assert problem(SPEC._replace(**changes)).startswith(cause)


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"length": 1023}, "fragment.length: must be 1024 to 17179869184, not 1023"),
        ({"length": (16 << 30) + 1}, "fragment.length: must be"),
        ({"compression_codec": 0}, "fragment.compression_codec: use one of NONE, GZIP"),
        ({"stores": ("/folder/",)}, "fragment.stores[0]: the scheme of '/folder/' must be one of"),
        ({"stores": ("file://host/x/",)}, "fragment.stores[0]: 'file://host/x/' must not have"),
        ({"stores": ("file:///x/", "s3:///x/")}, "fragment.stores[1]: 's3:///x/' must name a"),
        ({"stores": ("s3://bucket/x",)}, "fragment.stores[0]: the path of 's3://bucket/x' must"),
        ({"stores": ("s3://[x/",)}, "fragment.stores[0]: 's3://[x/' is no URL"),
        ({"stores": (f"s3://b/{'a' * 2048}/",)}, "fragment.stores[0]: must have at most 2048"),
        ({"refresh_ns": 10**9 - 1}, "fragment.refresh_interval: must be 1s to 24h"),
        ({"flush_ns": 59 * 10**9}, "fragment.flush_interval: must be 0 or at least 1m"),
        ({"path_postfix_template": "{{ .Nothing }}"}, "fragment.path_postfix_template: {{ .Not"),
        ({"path_postfix_template": "../x"}, "fragment.path_postfix_template: '../x' is no"),
        (
            {"compression_codec": 5, "stores": ("file:///x/",)},
            "fragment.compression_codec: GZIP_OFFLOAD_DECOMPRESSION needs",
        ),
    ],
)
def test_invalid_fragments_are_named(changes: dict[str, Any], cause: str) -> None:
    assert problem(SPEC._replace(fragment=SPEC.fragment._replace(**changes))).startswith(cause)


# --- selectors ------------------------------------------------------------------------------------

LABELS = LabelSet.of([("color", "red"), ("color", "blue"), ("size", "10"), ("path", "a/b/c")])


@pytest.mark.parametrize(
    ("text", "is_selected"),
    [
        ("", True),
        ("color", True),
        ("color=red", True),
        ("color == blue", True),
        ("color=green", False),
        ("color in (green, red)", True),
        ("color in (green, yellow)", False),
        ("!color", False),
        ("!weight", True),
        ("color!=red", False),
        ("color != green", True),
        ("color notin (green, blue)", False),
        ("color not in (green, yellow)", True),
        ("color=red,size=10", True),
        ("color=red, size=11", False),
        ("color=red, size=10, !path", False),
        ("path:prefix=a/b", True),
        ("path:prefix=a/c", False),
        ("path:prefix in (x, a/)", True),
        ("path:prefix!=a/", False),
        ("weight", False),
    ],
)
def test_selector_selects(text: str, is_selected: bool) -> None:
    assert parse_selector(text).matches(LABELS) is is_selected


@pytest.mark.parametrize("text", ["=", "color in ()", "a=b c=d", "a,,b", "color in (a", "a b", ","])
def test_invalid_selector_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="invalid selector at"):
        parse_selector(text)


def test_prefix_of_journals_is_a_prefix_of_names() -> None:
    selector = selector_of_journals(LabelSelector((Wanted("prefix", "orders/"),)))
    assert selector.matches(with_name(LABELS, "orders/eu"))
    assert not selector.matches(with_name(LABELS, "order/eu"))
    with pytest.raises(ValueError, match="end it with"):
        selector_of_journals(LabelSelector((), (Wanted("prefix", "orders"),)))


# --- durations ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value_ns", "canonical"),
    [
        ("0", 0, "0s"),
        ("5m", 300 * 10**9, "5m0s"),
        ("1h30m", 5400 * 10**9, "1h30m0s"),
        ("1.5s", 1_500_000_000, "1.5s"),
        ("300ms", 300_000_000, "300ms"),
        ("1.5ms", 1_500_000, "1.5ms"),
        ("-2us", -2_000, "-2µs"),
        ("7ns", 7, "7ns"),
        ("1d", 86_400 * 10**9, "24h0m0s"),
    ],
)
def test_durations(text: str, value_ns: int, canonical: str) -> None:
    assert parse_duration(text) == value_ns
    assert format_duration(value_ns) == canonical


@pytest.mark.parametrize("text", ["", "5", "m", "5 m", "1m-2s", "5x", "-", "300y", "9" * 20 + "h"])
def test_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="invalid duration"):
        parse_duration(text)


@given(st.integers(-(1 << 62), 1 << 62))
def test_duration_is_read_as_it_is_written(value_ns: int) -> None:
    assert parse_duration(format_duration(value_ns)) == value_ns


# --- postfixes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "folder"),
    [
        ("", ""),
        ("plain/folder", "plain/folder"),
        ('date={{ .Spool.FirstAppendTime.Format "2006-01-02" }}', "date=2026-11-24"),
        ('{{.Spool.FirstAppendTime.Format "06/Jan/Mon/15h04m05s"}}', "26/Nov/Tue/12h30m15s"),
        ("from={{ .Spool.Begin }}/to={{ .Spool.End }}", "from=7/to=9"),
        ("of={{- .Name -}}", "of=orders"),
    ],
)
def test_postfix_names_a_folder(template: str, folder: str) -> None:
    assert Postfix(template).folder("orders", 7, 9, 1795523415) == folder


@pytest.mark.parametrize(
    "template", ["{{ .X }}", "{{ .Name", "a }}", "/x", "a//b", "x y", "a/", ".."]
)
def test_invalid_postfix_is_refused(template: str) -> None:
    with pytest.raises(PostfixError):
        Postfix(template).check("orders")


@pytest.mark.parametrize("template", ["{{" + " " * 1000, "{{ " * 300, "{{" * 500, "x" * 1025])
def test_long_postfix_is_refused_in_no_time(template: str) -> None:
    begun = time.process_time()
    with pytest.raises(PostfixError):
        Postfix(template)
    assert time.process_time() - begun < 0.5


def test_long_selector_is_refused_in_no_time() -> None:
    begun = time.process_time()
    for text in ("a," * 100_000 + "a", "a," * 1_000_000):
        with pytest.raises(ValueError, match="the selector has"):
            parse_selector(text)
    assert time.process_time() - begun < 0.5


def test_many_registers_are_subtracted_in_no_time() -> None:
    registers = LabelSet.of((f"name-{number}", "value") for number in range(10_000))
    others = LabelSet.of([("name-1", "value"), ("name-1", "other"), ("more", "x")])
    begun = time.process_time()
    assert not list(registers.subtract(registers))
    assert time.process_time() - begun < 0.5
    assert registers.subtract(others) == registers


def test_selector_has_a_maximum_number_of_labels() -> None:
    text = ",".join(f"name=journal/{number}" for number in range(SELECTOR_LABELS_MAX))
    assert len(parse_selector(text).include) == SELECTOR_LABELS_MAX
    with pytest.raises(ValueError, match="the selector has 257 labels"):
        parse_selector(f"{text},!region")
    wanted = tuple(Wanted("name", str(number)) for number in range(SELECTOR_LABELS_MAX))
    with pytest.raises(ValueError, match="the selector has 257 labels"):
        selector_of_journals(LabelSelector(wanted, (Wanted("region"),)))
