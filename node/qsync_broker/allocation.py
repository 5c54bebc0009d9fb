"""Settings of the C library's allocator for a process that passes on much content."""

import ctypes

KEPT_BYTES = 64 << 20
"""Freed memory that the process keeps for the next content."""
MAPPED_BYTES = 4 << 20
"""Smallest block that has a mapping of its own, which ends when the block is freed."""
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def keep_freed_memory() -> bool:
    """Let the allocator keep freed memory, and return whether the C library can.

    By default, glibc returns the content of an append to the kernel as soon as it is freed. The
    kernel then clears each page again for the next append: page faults took 12 % of the CPU time
    of a peer that received 1 MiB at a time. Other C libraries have no such setting.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None:
        return False
    options = ((_M_TRIM_THRESHOLD, KEPT_BYTES), (_M_MMAP_THRESHOLD, MAPPED_BYTES))
    return all([set_option(option, value) == 1 for option, value in options])
