"""Text of the documentation that programs write."""

from pathlib import Path


def write_between(page: Path, begin: str, end: str, text: str) -> None:
    """Replace the text between two marks of a page.

    Args:
        page: the page.
        begin: the mark before the text, with its line end.
        end: the mark after it.
        text: the new text.

    Raises:
        ValueError: the page does not contain the marks in this order.
    """
    before, begins, rest = page.read_text().partition(begin)
    _, ends, after = rest.partition(end)
    if not begins or not ends:
        raise ValueError(f"{page} lacks {begin!r} and {end!r}, between which the text belongs")
    page.write_text(f"{before}{begin}{text}{end}{after}")
