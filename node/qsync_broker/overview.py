"""A bounded selection of journals, and all brokers, for pages that people read.

A cluster may have tens of thousands of journals. The answer contains journals with a problem, then
those with the first names. Every broker selects by the same rules, so that the answers of all of
them contain the same journals, apart from problems that only a journal's own broker knows.
"""

from collections.abc import Callable
from heapq import nsmallest
from typing import Any

from qsync_broker.broker import Broker
from qsync_broker.description import describe
from qsync_node.format.journals import JournalRow

JOURNALS_MAX = 200
"""Maximum number of journals with a problem, and of others, in an answer."""


def overview(
    core: Broker, permits: Callable[[JournalRow], bool] | None, part: str, limit: int
) -> dict[str, Any]:
    """Return brokers, and descriptions of at most `2 * limit` journals, by name.

    Args:
        core: the broker.
        permits: whether the client may see a journal; None if it may see all.
        part: part of the names of the wanted journals, or "".
        limit: number of journals with a problem, and of others; `JOURNALS_MAX` at most.
    """
    keys, limit = core.keys, min(limit, JOURNALS_MAX)
    matching = [
        name
        for name, row in keys.journals.items()
        if part in name and (permits is None or permits(row))
    ]
    failing = set(core.census.failing) & set(matching)
    chosen = {*nsmallest(limit, failing), *nsmallest(limit, matching)}
    return {
        "revision": keys.revision,
        "total": len(matching),
        "journals": [describe(core, keys.journals[name]) for name in sorted(chosen)],
        "brokers": [
            {
                "name": broker.suffix,
                "zone": broker.zone,
                "is_exiting": row.is_exiting,
                "assignments": keys.load(broker),
                "primaries": keys.primaries(broker),
            }
            for broker, row in sorted(keys.brokers.items())
        ],
    }
