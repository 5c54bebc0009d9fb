"""The allocator of a broker keeps the memory of former appends."""

import subprocess
import sys

PROGRAM = """
import resource
from qsync_broker.allocation import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def appends(count):
    before = faults()
    for _ in range(count):
        pieces = [bytes(256 << 10) for _ in range(16)]
        del pieces
    return faults() - before

default = appends(50)
assert keep_freed_memory()
appends(2)
print(default, appends(50))
"""


def test_pages_are_not_cleared_for_each_append() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=True, stdout=subprocess.PIPE, text=True
    )
    default, kept = map(int, done.stdout.split())
    assert kept * 10 < default, "pages of freed memory were cleared again"
