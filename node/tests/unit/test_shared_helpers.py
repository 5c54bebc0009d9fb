"""Tests, benchmarks and scenarios share helpers as a package; nothing changes the import path."""

import ast
from collections.abc import Iterator

import pytest

from qsync_testing.paths import ROOT

PARTS = ("node/tests", "node/qsync_testing", "node/spec", "operator/tests", "e2e")


def problems_of(source: str) -> Iterator[str]:
    """Yield each change of `sys.path` and each import of a test."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.path":
            yield f"{node.lineno}: sys.path"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("test_"):
            yield f"{node.lineno}: imports {node.module}"
        elif isinstance(node, ast.Import) and any(
            one.name.startswith("test_") for one in node.names
        ):
            yield f"{node.lineno}: {ast.unparse(node)}"


def test_no_test_imports_another_test_or_changes_the_path() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{problem}"
        for part in PARTS
        for path in sorted((ROOT / part).rglob("*.py"))
        for problem in problems_of(path.read_text())
    ]
    assert not found, "move shared code to node/qsync_testing:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "source",
    ["sys.path.insert(0, '.')", "sys.path[:0] = ['.']", "from test_a import b", "import test_a"],
)
def test_changed_path_and_imported_test_are_found(source: str) -> None:
    assert len(list(problems_of(source))) == 1
