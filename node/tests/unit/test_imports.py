"""Import cycles between the project's modules.

All `import` statements count: also relative ones, those inside functions, and those inside
`if TYPE_CHECKING:`. A cycle that exists for types only is one, too: none of its modules can be
understood or tested without the others. The implicit import of a module's packages does not count.
"""

import ast
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from qsync_testing.paths import ROOT

PARTS = (ROOT / "node", ROOT / "operator")

Graph = dict[str, dict[str, int]]
"""The imported modules of each module, with the line of the first import."""


def read_graph(parts: Iterable[Path]) -> Graph:
    """Return the imports between all modules of the packages `qsync_*` in some folders."""
    files = {
        ".".join(path.relative_to(part).with_suffix("").parts).removesuffix(".__init__"): path
        for part in parts
        for path in sorted(part.glob("qsync_*/**/*.py"))
    }
    return {name: _imports(name, path, files) for name, path in files.items()}


def _imports(name: str, path: Path, known: Mapping[str, Path]) -> dict[str, int]:
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found: dict[str, int] = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")
                above = above[: len(above) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            names = [f"{base}.{alias.name}" for alias in node.names]
            targets = [one if one in known else base for one in names]
        else:
            continue
        for target in targets:
            if target in known and target != name:
                found[target] = min(node.lineno, found.get(target, node.lineno))
    return found


def find_cycles(graph: Graph) -> list[frozenset[str]]:
    """Return the strongly connected components with more than one module (Tarjan, 1972)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    cycles: list[frozenset[str]] = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        stack.append(module)
        for target in graph[module]:
            if target not in order:
                visit(target)
                lowest[module] = min(lowest[module], lowest[target])
            elif target in stack:
                lowest[module] = min(lowest[module], order[target])
        if lowest[module] == order[module]:
            at = stack.index(module)
            component = frozenset(stack[at:])
            del stack[at:]
            if len(component) > 1:
                cycles.append(component)

    for module in graph:
        if module not in order:
            visit(module)
    return cycles


def describe_cycle(graph: Graph, cycle: frozenset[str]) -> str:
    """Return the imports inside a cycle, one a line."""
    return "\n".join(
        f"  {module} imports {target} in line {line}"
        for module in sorted(cycle)
        for target, line in sorted(graph[module].items())
        if target in cycle
    )


def problems_of(graph: Graph) -> list[str]:
    """Return the cycles with their imports, each as one text."""
    cycles = sorted(find_cycles(graph), key=min)
    return [f"import cycle:\n{describe_cycle(graph, cycle)}" for cycle in cycles]


def test_no_import_cycle() -> None:
    graph = read_graph(PARTS)
    assert {"qsync_node.node", "qsync_operator.plan", "qsync_cli"} <= set(graph)
    problems = problems_of(graph)
    assert not problems, "\n".join(problems)


CHECKED = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    "
LOCAL = "def late() -> None:\n    "


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("import qsync_a.deep.two", "import qsync_a.one"),
        (f"{CHECKED}from qsync_a.deep.two import Two", "from qsync_a.one import One"),
        ("from qsync_a.deep import two", f"{LOCAL}from qsync_a.one import One"),
        ("from .deep import two", "from .. import one"),
        ("from .deep.two import Two", f"{CHECKED}from ..one import One"),
    ],
)
def test_planted_cycle_is_found_with_its_lines(tmp_path: Path, one: str, two: str) -> None:
    deep = tmp_path / "qsync_a" / "deep"
    deep.mkdir(parents=True)
    for folder in (deep.parent, deep):
        (folder / "__init__.py").write_text("")
    (deep.parent / "one.py").write_text(f"{one}\n")
    (deep / "two.py").write_text(f"{two}\n")
    (deep / "three.py").write_text("from qsync_a import one\nfrom os import path\n")
    graph = read_graph([tmp_path])
    cycle = frozenset({"qsync_a.one", "qsync_a.deep.two"})
    assert find_cycles(graph) == [cycle]
    (problem,) = problems_of(graph)
    assert problem.splitlines()[1:] == [
        f"  qsync_a.deep.two imports qsync_a.one in line {len(two.splitlines())}",
        f"  qsync_a.one imports qsync_a.deep.two in line {len(one.splitlines())}",
    ]
