"""The modules that handle an INSERT on its way, followed at run time.

A module handles the request if it receives the request itself, or an object that holds its rows:
the call, the write, the entry of the log. `docs/architecture.md` shows the same path.
"""

import re
import sys
from collections import Counter
from types import FrameType
from typing import Any

from qsync_node.consensus import effects as fx
from qsync_node.consensus.entries import Entry
from qsync_node.engine.overlay import Executed
from qsync_node.transactions.calls import Call, Write
from qsync_sim.shell import Shell
from qsync_testing.paths import ROOT
from qsync_testing.worlds import INSERT, Driven, node_of, put

PAGE = ROOT / "docs/architecture.md"
CARRIERS = (fx.Request, Call, Write, Executed, Entry)
MODULES_MAX = 12
ENTERED_MAX = 2
"""Times that a module is entered: with the request, and once its rows are confirmed."""


def handled_by(frame: FrameType, body: bytes) -> bool:
    """Return whether the function that begins receives the request or its rows."""
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    for name in names:
        value = frame.f_locals.get(name)
        if name == "self":
            continue
        for one in value if isinstance(value, list) else (value,):
            if isinstance(one, CARRIERS) or one is body:
                return True
    return False


def path_of_an_insert() -> list[str]:
    """Return the modules that are entered, in order, from the request to its answer."""
    driven = Driven(1)
    driven.run(500)
    shell = driven.leader()
    node = node_of(shell)
    node.observer = None
    body = put(5, "x")
    path: list[str] = []

    def follow(frame: FrameType, event: str, _: object) -> None:
        if event != "call" or frame.f_back is None:
            return
        module = str(frame.f_globals.get("__name__"))
        is_entered = module != frame.f_back.f_globals.get("__name__")
        if module.startswith("qsync_node") and is_entered and handled_by(frame, body):
            path.append(module.removeprefix("qsync_node."))

    def step(inputs: list[Any]) -> list[Any]:
        sys.setprofile(follow)
        try:
            return list(node.step(shell.now_ns(), 1e9, inputs))
        finally:
            sys.setprofile(None)

    effects = step([fx.Request(100, 1, INSERT, body, 0, "admin", None)])
    (write,) = [effect for effect in effects if isinstance(effect, fx.WriteLog)]
    effects = step([fx.LogWritten(write.epoch, write.batches[-1].last_index)])
    (answer,) = [effect for effect in effects if isinstance(effect, fx.Answer)]
    assert not answer.code
    return path


def test_insert_passes_few_modules_and_the_page_shows_them() -> None:
    path = path_of_an_insert()
    counts = Counter(path)
    assert len(counts) <= MODULES_MAX, counts
    assert max(counts.values()) <= ENTERED_MAX, counts
    section = PAGE.read_text().split("### Modules that handle an INSERT")[1].split("\n## ")[0]
    shown = re.findall(r"`([a-z_./]+)\.py`", section)
    assert {module.replace(".", "/") for module in path} == set(shown) - {"test_insert_path"}


CALLS_OF_AN_IDLE_STEP_MAX = 35
CALLS_OF_AN_INSERT_MAX = 165
"""Both are also costs of each simulated step."""


def calls_of(shell: Shell, inputs: list[Any]) -> int:
    """Return how many functions of the node a step calls."""
    calls = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call" and str(frame.f_globals.get("__name__")).startswith("qsync_node")

    sys.setprofile(count)
    try:
        node_of(shell).step(shell.now_ns(), 1e9, inputs)
    finally:
        sys.setprofile(None)
    return calls


def test_step_of_a_leader_calls_few_functions() -> None:
    driven = Driven(3)
    driven.run(500)
    shell = driven.leader()
    assert calls_of(shell, []) <= CALLS_OF_AN_IDLE_STEP_MAX
    insert = fx.Request(100, 1, INSERT, put(5, "x"), 0, "admin", None)
    assert calls_of(shell, [insert]) <= CALLS_OF_AN_INSERT_MAX
