"""Ctrl-C ends a command without a traceback, also while its modules are loaded."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from qsync_cli import lazy, main

MODULE = "import signal\nsignal.raise_signal(signal.SIGINT)\nname = 1\n"
PROGRAM = """
from qsync_cli import lazy
lazy.install()
import qsync_slow
try:
    from qsync_slow import name
except KeyboardInterrupt:
    print("interrupted")
"""


def test_interrupt_of_a_deferred_module_is_not_lost(tmp_path: Path) -> None:
    (tmp_path / "qsync_slow.py").write_text(MODULE)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "interrupted\n", done.stderr


@pytest.mark.parametrize("is_interrupted", [True, False])
def test_errors_after_an_interrupt_are_its_consequence(
    monkeypatch: pytest.MonkeyPatch, is_interrupted: bool
) -> None:
    def fail() -> None:
        try:
            raise KeyboardInterrupt if is_interrupted else ValueError
        except (KeyboardInterrupt, ValueError):
            raise AttributeError("a module that was half executed") from None

    monkeypatch.setattr(main, "app", fail)
    monkeypatch.setattr(lazy, "install", lambda: None)
    if not is_interrupted:
        with pytest.raises(AttributeError):
            main.main()
        return
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == main.INTERRUPTED
