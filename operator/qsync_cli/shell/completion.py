"""Words that may follow in a line of the console. Nothing here reads or writes anything."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from qsync_cli.shell.grammar import ALIASES, VERBS, SyntaxFailed, words_of
from qsync_client import Iterator, Space

WATCHED = ("box.election", "box.status", "box.schema", "box.id")
_ITERATORS = ("ALL", "EQ", "GE", "GT", "LE", "LT", "REQ")


class Completion(NamedTuple):
    """A word, and the number of characters before the cursor that it replaces."""

    text: str
    length: int
    meta: str = ""


def completions(text: str, spaces: Sequence[Space]) -> list[Completion]:
    """Return the completions of the text before the cursor."""
    start = max(text.rfind(" "), text.rfind("\t")) + 1
    last = text[start:]
    try:
        words = words_of(text[:start])
        words_of(text)
    except SyntaxFailed:
        return _in_json(text, last, spaces)
    return [
        Completion(word, len(last), meta)
        for word, meta in _candidates(words, last, spaces)
        if word.lower().startswith(last.lower())
    ]


def _candidates(words: list[str], last: str, spaces: Sequence[Space]) -> Iterable[tuple[str, str]]:
    if not words:
        return [(name, verb.help) for name, verb in VERBS.items()]
    name = ALIASES.get(words[0].lower(), words[0].lower())
    verb = VERBS.get(name)
    if verb is None:
        return []
    space = next((one for one in spaces if len(words) > 1 and one.name == words[1]), None)
    if words[-1].startswith("--"):
        return _values(words[-1][2:], space)
    if name in ("help", "output"):
        return [(one, "") for one in (VERBS if name == "help" else ("table", "json"))]
    if len(words) == 1 and verb.has_space:
        found = [(one.name, f"{len(one.fields)} fields") for one in spaces]
        return found + [(key, "key") for key in WATCHED] if name == "watch" else found
    if last.startswith("-"):
        return [(f"--{one}", "") for one in (*verb.options, *verb.flags)]
    if space is None:
        return []
    if name == "update":
        if "set" in words:
            return [(f"{field.name}=", field.type) for field in space.fields]
        return [("set", "changes follow")] if len(words) > 2 else []
    if name in ("put", "insert") and len(words) == 2:
        row = ", ".join(f'"{field.name}": ' for field in space.fields)
        return [("{" + row + "}", "row")]
    return []


def _values(option: str, space: Space | None) -> list[tuple[str, str]]:
    if option == "iterator":
        return [(one, "") for one in _ITERATORS if one in Iterator.__members__]
    if option == "index" and space is not None:
        return [(one.name, one.type) for one in space.indexes]
    return []


def _in_json(text: str, last: str, spaces: Sequence[Space]) -> list[Completion]:
    """Return names of fields inside an object that is not finished."""
    words = text.split()
    space = next((one for one in spaces if len(words) > 1 and one.name == words[1]), None)
    begun = last.lstrip("{")
    if space is None or not begun.startswith('"') or begun.count('"') != 1:
        return []
    return [
        Completion(f'"{field.name}": ', len(begun), field.type)
        for field in space.fields
        if f'"{field.name}'.startswith(begun) and f'"{field.name}":' not in text
    ]
