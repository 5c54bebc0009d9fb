"""Lines of the console as commands. Nothing here reads or writes anything.

A line has the words of a one-shot command without `qsync` and the cluster. JSON needs no quotes of
a shell: a word that begins with `{`, `[` or `"`, or has one of them after `=`, ends where the JSON
value ends. Single quotes are accepted around a word, so that one-shot commands can be pasted.
"""

import difflib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field

_DECODER = json.JSONDecoder()
_JSON_STARTS = '{["'


class SyntaxFailed(ValueError):  # noqa: N818  # the builtin has the better name
    """A line is no command; the text names the cause and the remedy."""


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb of the console.

    Attributes:
        name: first word of the line.
        usage: the words after it.
        help: one sentence.
        options: options with a value.
        flags: options without one.
        least: minimum number of words after the verb.
        most: maximum number, or None.
        has_space: whether the first word is a space.
    """

    name: str
    usage: str
    help: str
    options: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    least: int = 0
    most: int | None = 0
    has_space: bool = False


VERBS = {
    verb.name: verb
    for verb in (
        Verb("get", "SPACE KEY... [--index I] [--linearizable]", "Show the row with a key.",
             ("index",), ("linearizable",), 2, None, True),
        Verb("select", "SPACE [KEY...] [--index I] [--iterator I] [--limit N] [--linearizable]",
             "Show rows in the order of an index; `more` shows the next ones.",
             ("index", "iterator", "limit"), ("linearizable",), 1, None, True),
        Verb("more", "", "Show the next rows of the last select."),
        Verb("count", "SPACE [KEY...] [--index I] [--iterator I]", "Count rows.",
             ("index", "iterator"), (), 1, None, True),
        Verb("put", "SPACE ROW", "Insert a row, or replace the one with its primary key.",
             (), (), 2, 2, True),
        Verb("insert", "SPACE ROW", "Insert a row; it is refused if one has its primary key.",
             (), (), 2, 2, True),
        Verb("update", "SPACE KEY... set FIELD=VALUE... [--index I]",
             "Change fields of one row; also FIELD+=N, -=, &=, |= and ^=.",
             ("index",), (), 4, None, True),
        Verb("delete", "SPACE KEY... [--index I]", "Delete one row.",
             ("index",), (), 2, None, True),
        Verb("retry", "", "Repeat the last write with an unknown outcome under its key."),
        Verb("begin", "", "Begin a transaction."),
        Verb("commit", "", "Commit the transaction, and show its outcome."),
        Verb("rollback", "", "Roll the transaction back."),
        Verb("watch", "SPACE | box.election | box.status | box.schema",
             "Show confirmed changes of a space, or values of a key, until Ctrl-C.",
             (), (), 1, 1, True),
        Verb("spaces", "", "List spaces."),
        Verb("describe", "SPACE", "Show the fields and indexes of a space.", (), (), 1, 1, True),
        Verb("output", "table | json", "Choose the form of rows.", (), (), 1, 1),
        Verb("help", "[VERB]", "Show all verbs, or the usage of one.", (), (), 0, 1),
        Verb("exit", "", "Leave the console; an open transaction is rolled back."),
    )
}  # fmt: skip
ALIASES = {"quit": "exit", "replace": "put", "?": "help"}


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """A parsed line.

    Attributes:
        verb: name of the verb.
        words: words after it, without options.
        options: values of options, "" for flags.
    """

    verb: str
    words: tuple[str, ...] = ()
    options: dict[str, str] = field(default_factory=dict)


def words_of(line: str) -> list[str]:
    """Return the words of a line.

    Raises:
        SyntaxFailed: a JSON value or a quoted word does not end.
    """
    words: list[str] = []
    place = 0
    while True:
        while place < len(line) and line[place].isspace():
            place += 1
        if place == len(line):
            return words
        word, place = _word(line, place)
        words.append(word)


def _word(line: str, place: int) -> tuple[str, int]:
    if line[place] == "'":
        end = line.find("'", place + 1)
        if end < 0:
            raise SyntaxFailed("the quoted word has no end: add '")
        return line[place + 1 : end], end + 1
    start = place
    while place < len(line) and not line[place].isspace():
        if line[place] in _JSON_STARTS and (place == start or line[place - 1] == "="):
            try:
                _, place = _DECODER.raw_decode(line, place)
            except (ValueError, RecursionError) as error:  # also too many digits, or levels
                raise SyntaxFailed(f"invalid JSON: {error}") from error
        else:
            place += 1
    return line[start:place], place


def parse(line: str) -> ShellCommand | None:
    """Return the command of a line, or None for an empty one.

    Raises:
        SyntaxFailed: the line is no command.
    """
    words = words_of(line.strip().removesuffix(";"))
    if not words:
        return None
    name = ALIASES.get(words[0].lower(), words[0].lower())
    verb = VERBS.get(name)
    if verb is None:
        raise SyntaxFailed(f"unknown verb {words[0]}: `help` lists the verbs{_nearest(name)}")
    plain, options = _options(verb, words[1:])
    if len(plain) < verb.least or (verb.most is not None and len(plain) > verb.most):
        raise SyntaxFailed(f"usage: {verb.name} {verb.usage}")
    return ShellCommand(name, tuple(plain), options)


def _options(verb: Verb, words: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    plain: list[str] = []
    options: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        if not word.startswith("--"):
            plain.append(word)
            continue
        name, is_joined, value = word[2:].partition("=")
        if name in verb.flags:
            options[name] = ""
        elif name in verb.options:
            found = value if is_joined else next(rest, None)
            if found is None:
                raise SyntaxFailed(f"--{name} has no value; usage: {verb.name} {verb.usage}")
            options[name] = found
        else:
            raise SyntaxFailed(f"unknown option {word}; usage: {verb.name} {verb.usage}")
    return plain, options


def _nearest(name: str) -> str:
    found = difflib.get_close_matches(name, VERBS, n=1)
    return f"; is it {found[0]}?" if found else ""
