"""Templates of the folder of a fragment below the folder of its journal.

A template is text with expressions of Go's templates, of which these are known:

    {{ .Spool.Begin }}, {{ .Spool.End }}              offsets of the fragment
    {{ .Spool.FirstAppendTime.Format "2006-01-02" }}  UTC time of its first append, by Go's layout
    {{ .Name }}, {{ .Spool.Journal }}                 name of the journal

Gazette's documentation uses the time of the first append, to sort fragments into folders like
`date=2026-11-24/hour=12`.
"""

import posixpath
import re
from datetime import UTC, datetime

TEMPLATE_MAX = 1024
"""Maximum length of a template in characters."""
_EXPRESSION = re.compile(r"\{\{([^{}]*)\}\}")
_FORMAT = re.compile(r'\.(?:Spool\.)?FirstAppendTime\.Format\s+"([^"]*)"')
_LAYOUT = (  # Go's reference time, longest names first
    ("2006", "%Y"),
    ("January", "%B"),
    ("Monday", "%A"),
    ("Jan", "%b"),
    ("Mon", "%a"),
    ("MST", "UTC"),
    ("01", "%m"),
    ("02", "%d"),
    ("15", "%H"),
    ("03", "%I"),
    ("04", "%M"),
    ("05", "%S"),
    ("06", "%y"),
    ("PM", "%p"),
)
_LAYOUT_NAMES = re.compile("|".join(name for name, _ in _LAYOUT))
_PATH = re.compile(r"[\w\-+/.=%]+")


class PostfixError(ValueError):
    """The template is invalid; the text states the cause."""


class Postfix:
    """A template of a folder."""

    def __init__(self, template: str) -> None:
        """Parse a template.

        Raises:
            PostfixError: it is too long, or has an expression that is not known.
        """
        if len(template) > TEMPLATE_MAX:
            raise PostfixError(f"has {len(template)} characters: use at most {TEMPLATE_MAX}")
        self._parts: list[str] = _EXPRESSION.split(template)  # text and expressions in turn
        for number in range(1, len(self._parts), 2):
            self._parts[number] = _trimmed(self._parts[number])
            _evaluate(self._parts[number], "", 0, 0, 0)
        if any("{{" in text or "}}" in text for text in self._parts[::2]):
            raise PostfixError(f"{template!r} has an expression without its end: use {{{{ ... }}}}")

    def folder(self, journal: str, begin: int, end: int, first_append: int) -> str:
        """Return the folder of a fragment, "" for the journal's own.

        Args:
            journal: name of the journal.
            begin: offset of the fragment's first byte.
            end: offset after its last byte.
            first_append: Unix time of its first append in seconds.
        """
        parts = list(self._parts)
        for number in range(1, len(parts), 2):
            parts[number] = _evaluate(parts[number], journal, begin, end, first_append)
        return "".join(parts)

    def check(self, journal: str) -> None:
        """Check that the template makes a folder.

        Raises:
            PostfixError: the result is no relative path.
        """
        folder = self.folder(journal, 0, 0, 0)
        if folder and (
            _PATH.fullmatch(folder) is None
            or folder.startswith(("/", ".."))
            or posixpath.normpath(folder) != folder
        ):
            raise PostfixError(f"{folder!r} is no relative path of letters, digits and -_+/.=%")


def _trimmed(expression: str) -> str:
    """Return an expression without blanks and Go's marks to remove the blanks around it."""
    return expression.removeprefix("-").removesuffix("-").strip()


def _evaluate(expression: str, journal: str, begin: int, end: int, first_append: int) -> str:
    if expression == ".Spool.Begin":
        return str(begin)
    if expression == ".Spool.End":
        return str(end)
    if expression in (".Name", ".JournalSpec.Name", ".Spool.Journal"):
        return journal
    found = _FORMAT.fullmatch(expression)
    if found is None:
        raise PostfixError(
            f"{{{{ {expression} }}}} is not known: use .Spool.FirstAppendTime.Format, .Spool.Begin,"
            " .Spool.End or .Name"
        )
    layout = dict(_LAYOUT)
    pattern = _LAYOUT_NAMES.sub(lambda name: layout[name[0]], found[1].replace("%", "%%"))
    return datetime.fromtimestamp(first_append, UTC).strftime(pattern)
