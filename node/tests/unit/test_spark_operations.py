"""The auditor's own UPDATE and UPSERT have the results of the engine's."""

from random import Random
from typing import Any

import pytest
from msgpack import packb, unpackb

from qsync_node.engine.updates import apply_operations as engine_apply
from qsync_node.errors import ClientError
from qsync_spark.audit.operations import Impossible, Unsupported, apply_operations

VALUES = (
    0, 1, 5, 2**63 - 1, 2**63, 2**64 - 1, -1, -(2**63), 1.5, -0.5, 1e300, 2.0, "abc", "", "héé",
    None, True, [1, 2], {"a": 1}, b"xyz",
)  # fmt: skip
CASES = 3000


def of_engine(fields: list[Any], operations: list[Any], base: int, is_upsert: bool) -> str:
    """Return the fields as text; "" if the engine refuses the operations."""
    try:
        packed = engine_apply(packb(fields), packb(operations), base, {}, is_upsert=is_upsert)
    except ClientError:
        return ""
    return repr(unpackb(packed, unicode_errors="surrogateescape"))


def of_auditor(fields: list[Any], operations: list[Any], base: int, is_upsert: bool) -> str:
    try:
        return repr(apply_operations(fields, operations, base, {}, is_upsert))
    except Impossible:
        return ""


@pytest.mark.parametrize(
    ("operations", "base", "is_upsert", "wanted"),
    [
        ([[":", 2, 1, 1, "X"]], 1, False, [7, "Xbcd", 1]),  # the offset of a splice counts from 1
        ([[":", 1, 1, 1, "X"]], 0, False, [7, "aXcd", 1]),
        ([[":", 2, -2, 1, "X"]], 1, False, [7, "abcX", 1]),
        ([["+", 2, 1], ["+", 2, 1]], 0, True, [7, "abcd", 2]),  # the second one is skipped
        ([["=", 2, 5], ["=", 2, 6]], 0, False, [7, "abcd", 6]),
        ([["+", 2, 1], ["!", 2, 9], ["+", 2, 1], ["+", 3, 1]], 0, True, [7, "abcd", 10, 2]),
        ([["+", 2, 1], ["#", 1, 1], ["+", 1, 1]], 0, True, [7, 2]),
        ([["=", 3, 1], ["+", 3, 1]], 0, False, [7, "abcd", 1, 2]),  # an added field is unchanged
        ([["#", 1, 2**32 + 1]], 0, False, [7, 1]),
    ],
)
def test_operations_on_fields(
    operations: list[Any], base: int, is_upsert: bool, wanted: list[Any]
) -> None:
    fields = [7, "abcd", 1]
    assert of_engine(fields, operations, base, is_upsert) == repr(wanted)
    assert of_auditor(fields, operations, base, is_upsert) == repr(wanted)


def random_operation(random: Random, base: int) -> list[Any]:
    name = random.choice("=!#+-&|^:")
    place = random.choice([*range(base, base + 6), -1, -2, -3, -4, -5])
    if name == ":":
        offset = random.choice([base, base + 1, base + 9, -1, -2, -9])
        return [name, place, offset, random.choice([0, 1, -1, -9, 9]), random.choice(["", "Q"])]
    arguments: dict[str, tuple[Any, ...]] = {
        "#": (1, 2, 9), "+": (0, 1, 2**63, 1.5, -(2**63)), "-": (0, 1, 2**64 - 1, 1e300),
        "&": (0, 7), "|": (1, 2**64 - 1), "^": (1, 7),
    }  # fmt: skip
    return [name, place, random.choice(arguments.get(name, VALUES))]


@pytest.mark.parametrize("is_upsert", [False, True])
def test_random_operations_agree_with_the_engine(is_upsert: bool) -> None:
    random = Random(5)
    compared = 0
    for _ in range(CASES):
        fields = [7, *random.choices(VALUES, k=random.randrange(1, 5))]
        base = random.randrange(2)
        operations = [random_operation(random, base) for _ in range(random.randrange(1, 4))]
        try:
            found = of_auditor(fields, operations, base, is_upsert)
        except Unsupported:
            continue
        compared += 1
        assert found == of_engine(fields, operations, base, is_upsert), (fields, operations, base)
    assert compared > CASES / 2
