"""Ends that the last synchronisations of a journal chose: proofs for a broker that was away (J4).

A broker that was away has bytes of an older epoch. All brokers of one epoch have received the same
bytes, from one primary. The next synchronisation that was recorded ended this epoch: the journal
has its bytes up to the chosen end, and others after it. A broker can therefore keep its bytes up to
this end, although it does not know them as confirmed.
"""

from qsync_node.format.journals import ChosenEnds, JournalRow

ENDS_MAX = 8
"""Synchronisations that the row of a journal keeps; a broker that missed more discards bytes."""


def ends_after(row: JournalRow, epoch: int, end: int, *, has_all: bool) -> ChosenEnds:
    """Return the chosen ends that a synchronisation records.

    Args:
        row: the journal before it.
        epoch: epoch of the synchronisation.
        end: the chosen end.
        has_all: whether a broker of the recorded epoch took part. Otherwise, bytes are lost, and
            former ends prove nothing.
    """
    former = row.ends if has_all and row.epoch else ()
    return (*former, (epoch, end))[-ENDS_MAX:]


def proven_end(ends: ChosenEnds, epoch: int) -> int:
    """Return the offset up to which the bytes of a broker are the journal's, 0 if none is known.

    Args:
        ends: the recorded ends.
        epoch: the broker's last epoch.
    """
    is_known = any(recorded <= epoch for recorded, _ in ends)
    later = (end for recorded, end in ends if recorded > epoch)
    return next(later, 0) if is_known else 0
