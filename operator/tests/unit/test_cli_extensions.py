"""Extension types as JSON: no bit is lost."""

import msgpack
import pytest
import typer
import yaml
from hypothesis import given
from hypothesis import strategies as st

from qsync_cli.data.extensions import datetime_of, decimal_of, object_of, uuid_of
from qsync_cli.data.reading import print_rows
from qsync_cli.data.values import json_of, value_of
from qsync_cli.options import Output
from qsync_client import Field, Row, Space


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"$decimal": "9.99"}', decimal_of("9.99")),
        ('{"$decimal": "-12345678901234567890"}', decimal_of("-12345678901234567890")),
        ('{"$decimal": "0.000"}', decimal_of("0.000")),
        ('{"$uuid": "0f3cd8a2-2f4e-4f3a-9d53-6d6f6a0e7c11"}',
         uuid_of("0f3cd8a2-2f4e-4f3a-9d53-6d6f6a0e7c11")),
        ('{"$datetime": "2026-01-31T12:00:00+00:00"}', datetime_of("2026-01-31T12:00:00Z")),
        ('{"$datetime": "1969-12-31T23:00:00.250000-02:30"}',
         datetime_of("1969-12-31T23:00:00.25-02:30")),
        ('{"$extension": [6, "AA=="]}', msgpack.ExtType(6, b"\0")),
    ],
)  # fmt: skip
def test_extension_is_printed_and_read(text: str, value: msgpack.ExtType) -> None:
    assert value_of(text) == value
    assert json_of(value) == text


def test_encodings_are_those_of_tarantool() -> None:
    assert decimal_of("-1.5") == msgpack.ExtType(1, b"\x01\x01\x5d")
    assert datetime_of("1970-01-01T00:00:01").data == (1).to_bytes(8, "little")


@given(st.integers(0, 127), st.binary(max_size=20))
def test_any_extension_returns_from_its_text(code: int, data: bytes) -> None:
    value = msgpack.ExtType(code, data)
    assert value_of(json_of(value)) == value


@given(st.decimals(allow_nan=False, allow_infinity=False, places=5, min_value=-(10**20),
                   max_value=10**20))  # fmt: skip
def test_decimals_return_from_their_text(number: object) -> None:
    assert object_of(decimal_of(str(number))) is not None
    assert value_of(json_of(decimal_of(str(number)))) == decimal_of(str(number))


def test_rows_with_extensions_are_printed_as_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    row = Row([1, decimal_of("1.5"), [b"x"]], Space(512, "s", (Field("id"),)))
    print_rows([row, Row([decimal_of("2")])], Output.yaml)
    assert yaml.safe_load(capsys.readouterr().out) == [
        {"id": 1, "1": {"$decimal": "1.5"}, "2": [{"$bytes": "eA=="}]},
        [{"$decimal": "2"}],
    ]


@pytest.mark.parametrize(
    "text",
    [
        '{"$decimal": "x"}',
        '{"$uuid": "1"}',
        '{"$datetime": "now"}',
        '{"$extension": [1, "?"]}',
        '{"$extension": [[], "AA=="]}',
        '{"$extension": [Infinity, "AA=="]}',
        '{"$extension": [1, 5]}',
        '{"$extension": [300, "AA=="]}',
    ],
)
def test_invalid_extension_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        value_of(text)
