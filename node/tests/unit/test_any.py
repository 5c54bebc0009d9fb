"""How often a parameter or a result is just `Any`.

`Any` switches the type checker off. It belongs to values of msgpack, to documents of the API server
and of JSON, and to libraries without types. `object` fits a value that is only passed on. The
numbers below may fall, never rise: who removes one lowers the number in the same commit.
"""

import ast
from collections.abc import Iterator

import pytest

from qsync_testing.paths import ROOT

MAXIMA = {
    "node/qsync_node": 35,
    "node/qsync_client": 19,
    "node/qsync_sim": 17,
    "node/qsync_spark": 26,
    "node/qsync_broker": 32,
    "node/qsync_testing": 57,
    "node/tests": 81,
    "operator/qsync_operator": 16,
    "operator/qsync_agent": 0,
    "operator/qsync_local": 1,
    "operator/qsync_cli": 31,
    "operator/qsync_web": 0,
    "operator/tests": 19,
    "e2e": 16,
}


def bare_annotations(source: str) -> Iterator[int]:
    """Yield the line of each parameter or result whose whole annotation is `Any`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.arg):
            annotation = node.annotation
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            annotation = node.returns
        else:
            continue
        if isinstance(annotation, ast.Name) and annotation.id == "Any":
            yield annotation.lineno


@pytest.mark.parametrize("part", MAXIMA)
def test_number_of_unchecked_parameters_and_results_does_not_rise(part: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted((ROOT / part).rglob("*.py"))
        for line in bare_annotations(path.read_text())
    ]
    assert len(found) == MAXIMA[part], "\n".join(found)


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("def f(a: Any, *b: Any, **c: Any) -> Any: ...", 4),
        ("async def f(a: object) -> Any: ...", 1),
        ("def f(a: dict[str, Any]) -> list[Any]: ...", 0),
        ("a: Any = 1", 0),
    ],
)
def test_annotations_are_counted(source: str, count: int) -> None:
    assert len(list(bare_annotations(source))) == count
