"""Every verb has `-o json`, or a stated reason to have none."""

import io
import re
import sys

import pytest

from qsync_cli.commands import COMMANDS, LOCAL
from qsync_cli.journals.commands import JOURNALS
from qsync_cli.lazy import LazyCommand
from qsync_cli.output import plain_table, print_table

WITHOUT = {
    "export": "-o names the file, and --format its form",
    "journals read": "the output is the bytes of the journal",
    "sh": "--json shows rows as JSON lines",
    "tail": "every line is JSON",
    "top": "a full-screen view; `status --watch -o json` streams",
}
CODES = re.compile(r"\x1b\[[0-9;]*m")
GROUPS = {"": COMMANDS, "local ": LOCAL, "journals ": JOURNALS}
VERBS = {f"{group}{command.name}": command for group, table in GROUPS.items() for command in table}


@pytest.mark.parametrize("verb", sorted(VERBS.keys() - WITHOUT.keys()))
def test_every_verb_has_json(verb: str) -> None:
    command: LazyCommand = VERBS[verb]
    options = [option for one in command.load().params for option in one.opts if "-o" in one.opts]
    assert options == ["-o", "--output"]


def test_only_existing_verbs_are_exempt() -> None:
    assert WITHOUT.keys() <= VERBS.keys()


def test_names_with_control_characters_are_escaped_in_tables() -> None:
    table = plain_table(["FIELD"], [["a\x1b[31mb"], ["line\nbreak"]])
    assert table.splitlines() == ["FIELD", "a\\u001b[31mb", "line\\nbreak"]


class TerminalText(io.StringIO):
    """Standard output that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("no_color", ["", "1"])
def test_table_on_a_terminal_has_no_trailing_spaces_and_obeys_no_color(
    monkeypatch: pytest.MonkeyPatch, no_color: str
) -> None:
    terminal = TerminalText()
    monkeypatch.setattr(sys, "stdout", terminal)
    for name, value in {"NO_COLOR": no_color, "COLUMNS": "80", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    print_table(["ROLE", "MESSAGE"], [["leader", "x" * 200], ["follower", "short"]])
    lines = terminal.getvalue().splitlines()
    plain = [CODES.sub("", line) for line in lines]
    assert plain == [line.rstrip() for line in plain]
    assert lines[2].endswith("short")
    assert ("\x1b" in terminal.getvalue()) is not bool(no_color)
