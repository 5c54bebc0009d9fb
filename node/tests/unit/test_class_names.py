"""Each class and alias of the repository has a name of its own.

A reader who searches for a name finds one definition, and a sentence that contains it has one
meaning. A class inside of another one or of a function counts, too. The parameters of a command of
`qsync_cli` are excepted: `FileOption` means the option of the command in the same module.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from qsync_testing.paths import ROOT

PARTS = ("node", "operator", "e2e", "docs", "deploy")
PARAMETERS = ("Option", "Argument")


def names_of(source: str) -> Iterator[tuple[str, int]]:
    """Yield the name and line of each class, and of each alias of a type at the top level."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name, node.lineno
    for node in tree.body:
        if isinstance(node, ast.Assign):
            target = node.targets[0]
        elif isinstance(node, ast.AnnAssign):
            target = node.target
        else:
            continue
        if isinstance(target, ast.Name) and _is_type(target.id):
            yield target.id, node.lineno


def _is_type(name: str) -> bool:
    """Return whether a name is written as a type: `Name` or `_Name`, not `NAME`."""
    letters = name.lstrip("_")
    return letters[:1].isupper() and letters != letters.upper() and not name.endswith(PARAMETERS)


def duplicates(sources: Mapping[str, str]) -> list[str]:
    """Return a line for each name that is defined more than once."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path, source in sources.items():
        for name, line in names_of(source):
            found[name].append(f"{path}:{line}")
    return [f"{name}: {', '.join(at)}" for name, at in sorted(found.items()) if len(at) > 1]


def read_sources(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): path.read_text()
        for part in PARTS
        for path in sorted((root / part).rglob("*.py"))
        if "_pb2" not in path.name
    }


def test_each_class_and_alias_has_its_own_name() -> None:
    sources = read_sources(ROOT)
    assert len(sources) > 500
    found = duplicates(sources)
    assert not found, "qualify these names:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("class State: pass", "class State: pass"),
        ("class State: pass", "State = int | str"),
        ("State: TypeAlias = int", "def f():\n    class State: pass"),
        ("class _State: pass", "_State = int"),
    ],
)
def test_name_with_two_meanings_is_found(one: str, two: str) -> None:
    (problem,) = duplicates({"one.py": one, "two.py": two})
    assert "State: one.py:1, two.py:" in problem


@pytest.mark.parametrize(
    "source", ["STATE = 1", "state = 1", "FileOption = int", "NameArgument = int", "X = 1"]
)
def test_constants_and_parameters_of_commands_are_not_types(source: str) -> None:
    assert duplicates({"one.py": source, "two.py": source}) == []


def test_test_modules_have_names_of_their_own() -> None:
    """Pytest imports them by their names alone, and refuses the second of two."""
    found = defaultdict(list)
    for part in PARTS:
        for path in (ROOT / part).rglob("test_*.py"):
            found[path.name].append(str(path.relative_to(ROOT)))
    assert [paths for paths in found.values() if len(paths) > 1] == []
