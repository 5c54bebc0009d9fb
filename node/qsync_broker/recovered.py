"""The journals that a broker's storage found at the start."""

import hashlib

from qsync_broker.holdings import RecoveredHoldings
from qsync_broker.index import LocalFragment
from qsync_broker.operations import NO_SUM, CompletedSpool, SpoolKey, SpoolState
from qsync_broker.spool import Spool, Version
from qsync_broker.storage.storage import SpoolStorage


def recovered_journals(storage: SpoolStorage) -> list[RecoveredHoldings]:
    """Return the journals that the storage found, for the core."""
    found: dict[str, RecoveredHoldings] = {}
    for opened in storage.recovered.open:
        versions = [
            Version(version.end, version.registers, version.hash) for version in opened.history
        ]
        spool = Spool.recovered(opened.state, versions)
        found[spool.journal] = RecoveredHoldings(spool, ())
    completed: dict[tuple[str, int], list[CompletedSpool]] = {}
    for one in storage.recovered.completed:
        completed.setdefault((one.key.journal, one.key.journal_id), []).append(one)
    for (journal, journal_id), spools in sorted(completed.items()):
        known = found.get(journal)
        if known is None or (not known.spool.epoch and known.spool.journal_id < journal_id):
            known = RecoveredHoldings(_spool_after(spools), ())
        if known.spool.journal_id == journal_id:
            fragments = tuple(LocalFragment.of(one) for one in spools)
            found[journal] = known._replace(completed=fragments)
    return list(found.values())


def _spool_after(spools: list[CompletedSpool]) -> Spool:
    """Return an open spool after completed ones.

    The disk has damaged the bytes of the former one, and the storage has set it aside. The
    completed ones still count. Without an epoch, the broker must be synchronised.
    """
    last = max(spools, key=lambda one: one.end)
    end = last.end
    key = SpoolKey(last.key.journal, last.key.journal_id, end)
    state = SpoolState(key, 0, end, NO_SUM, b"", end, last.codec, 0)
    return Spool.recovered(state, [Version(end, b"", hashlib.sha1())])
