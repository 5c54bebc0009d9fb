"""How far the code of an object reaches: at most three attributes in a row.

`self.replica.leader.tracker.quorum` depends on the structure of four other objects. Code that needs
something so far away gets it as an argument, asks a nearer object, or names the object in between.
Trees of data, such as specifications of the API, may be deeper, and are excepted by their root. The
observers of the simulator compare the insides of all members, and are excepted, too.
"""

import ast
from collections.abc import Iterator

import pytest

from qsync_testing.paths import ROOT

PARTS = (ROOT / "node", ROOT / "operator")
ATTRIBUTES_MAX = 3
DATA = frozenset({"cluster", "manifest", "spec", "aiohttp", "kubernetes", "pyarrow"})
"""Names of trees of data and of packages, with which a longer chain may begin."""


def chains_of(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each chain of more than `ATTRIBUTES_MAX` attributes."""
    tree = ast.parse(source)
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or id(node) in inner:
            continue
        length, root = 0, node
        at: ast.expr = root
        while isinstance(at, ast.Attribute):
            length, at = length + 1, at.value
        is_data = isinstance(at, ast.Name) and at.id in DATA
        if length > ATTRIBUTES_MAX and not is_data:
            yield node.lineno, ast.unparse(node)


def test_no_object_reaches_across_more_than_three_others() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for part in PARTS
        for path in sorted(part.glob("qsync_*/**/*.py"))
        if "_pb2" not in path.name and "qsync_sim" not in path.parts
        for line, text in chains_of(path.read_text())
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("a.b.c.d", 0),
        ("a.b.c.d.e", 1),
        ("a.b.c.d.e()", 1),
        ("a.b().c.d.e", 0),
        ("cluster.spec.auth.secret.name", 0),
        ("x = [a.b.c.d.e for y in z.a.b.c.d]", 2),
    ],
)
def test_longer_chains_are_found(source: str, count: int) -> None:
    assert len(list(chains_of(source))) == count
