"""Commands that a page of the documentation prints, for the tests that execute them."""

import re
import sys


def scripts_of(text: str) -> list[list[str]]:
    """Return the commands of a page as argument lists, in their order.

    Args:
        text: Markdown. A block of Python is one command, and so is each line of a console.
    """
    found = []
    for language, block in re.findall(r"```(console|python)\n(.*?)```", text, re.DOTALL):
        if language == "python":
            found.append([sys.executable, "-c", block])
        else:
            lines = [line.removeprefix("$ ") for line in block.splitlines()]
            found += [["/bin/sh", "-e", "-c", line] for line in lines]
    return found
