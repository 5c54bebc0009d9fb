"""The command line of schedules that a seed reproduces."""

import argparse
import sys
from collections import Counter
from collections.abc import Callable


def main(description: str | None, run: Callable[[int], Counter[str]]) -> int:
    """Run schedules, and return the exit code: 0 if none has failed, or if a hunted bug was found.

    Args:
        description: text for `--help`.
        run: runs the schedule of a seed, and returns how often everything happened. It raises
            AssertionError if an invariant does not hold.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seeds", default="0..99", help="first and last seed")
    parser.add_argument("--hunt", metavar="SEEDS", help="stop at the first seed that fails")
    arguments = parser.parse_args()
    first, _, last = (arguments.hunt or arguments.seeds).partition("..")
    failed, counts = 0, Counter[str]()
    for seed in range(int(first), int(last or first) + 1):
        try:
            counts += run(seed)
        except Exception as error:  # a planted bug may raise errors other than AssertionError
            if arguments.hunt:
                sys.stdout.write(f"found by seed {seed}: {error or type(error).__name__}\n")
                return 0
            if not isinstance(error, AssertionError):
                raise
            failed += 1
            sys.stdout.write(f"seed {seed}: {error}\n")
    if arguments.hunt:
        sys.stdout.write("nothing found\n")
        return 1
    sys.stdout.write(f"{failed} failed; {dict(sorted(counts.items()))}\n")
    return 1 if failed else 0
