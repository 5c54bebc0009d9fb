"""Measure how the project's text reads: rates of constructions per 1,000 words.

`python docs/prose/measure.py [ROOT]` prints one table for documentation, docstrings, comments and
strings of a tree of Markdown (or reStructuredText) and Python or Go sources. ROOT may be another
project's checkout, so that both are measured in the same way.
"""

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

CONSTRUCTIONS = {
    "nobody, somebody, everybody, whoever": r"\b(?:nobody|somebody|everybody|whoever|whomever)\b",
    "headless clause (what/who + verb)": (
        r"\b(?:what|who)(?:ever)?\s+(?:is|was|are|were|has|had|have|the|they|it|a|an|does|did|do|"
        r"comes|came|must|may|can|no|not|leads|led|wants|holds|gave|takes|took)\b"
    ),
    "says, said, tells, told": r"\b(?:say|says|said|tell|tells|told)\b",
    "behind (for after)": r"\bbehind\b",
    "go on": r"\b(?:go|goes|went|going|gone) on\b",
    "life (for process run)": r"\b(?:life|lives)\b",
    "anew, shall, whom, let go, rid of": r"\b(?:anew|shall|whom|let go|lets go|rid of|but for)\b",
    "ensure, guarantee": r"\b(?:ensur|guarante)\w*",
    "must, should": r"\b(?:must|should)\b",
    "return": r"\breturn(?:s|ed|ing)?\b",
}
SKIPPED = {".git", ".venv", "node_modules", "vendor", "site", ".mypy_cache", ".ruff_cache"}
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_PLACEHOLDER = re.compile(r"\{[^{}]*\}")
_WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
_QUESTION = re.compile(r"[^.?!\n]*\?")


def sources(root: Path) -> Iterator[Path]:
    """Yield the files of a tree that hold prose."""
    for path in sorted(root.rglob("*")):
        is_prose = path.suffix in (".md", ".rst", ".py", ".go") and not SKIPPED & set(path.parts)
        if is_prose and path.name != Path(__file__).name:  # this file lists the constructions
            yield path


def prose_of(path: Path) -> str:
    """Return the prose of one file without code.

    Raises:
        UnicodeDecodeError: the file is not UTF-8.
    """
    text = path.read_text()
    if path.suffix == ".py":
        return "\n".join(_of_python(text))
    if path.suffix == ".go":
        return "\n".join(re.findall(r"//\s?(.*)", text))
    return _CODE.sub("", _FENCE.sub("", text))


def _of_python(text: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string.lstrip("# ")
        elif token.type == tokenize.STRING:
            value = _value_of(token.string)
            if " " in value:  # a sentence; names and formats have none
                yield _CODE.sub("", _PLACEHOLDER.sub("", value))


def _value_of(literal: str) -> str:
    try:
        value = ast.literal_eval(literal)
    except (SyntaxError, ValueError):  # a template
        value = literal
    return value if isinstance(value, str) else ""


def main() -> int:
    """Print the table. Returns the exit code."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    counted: Counter[str] = Counter()
    words = 0
    for path in sources(root):
        text = prose_of(path)
        words += len(_WORD.findall(text))
        statements = _QUESTION.sub("", text)
        for name, pattern in CONSTRUCTIONS.items():
            counted[name] += len(re.findall(pattern, statements, re.IGNORECASE))
    if not words:
        sys.stderr.write(f"cannot measure {root}: it holds no Markdown or source file\n")
        return 1
    sys.stdout.write(f"{words} words\n")
    for name in CONSTRUCTIONS:
        sys.stdout.write(f"{1000 * counted[name] / words:6.2f}  {name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
