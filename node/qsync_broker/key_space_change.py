"""One transaction of the key space at a time, for an append that waits for it.

            begin                    the transaction is committed
NONE      ---------->  PENDING    ------------------------------->  DONE
  ^                       |
  |                       |  refused, or its outcome is unknown
  | forget                +-------------------------------------->  REFUSED
  +--------------- DONE and REFUSED
"""

from collections.abc import Callable
from enum import Enum

from qsync_broker.keyspace import KeyChange
from qsync_broker.replica import ReplicaHost


class ChangeState(Enum):
    """State of the transaction, see the table of this module."""

    NONE = "none"
    PENDING = "pending"
    DONE = "done"
    REFUSED = "refused"


class KeySpaceChange:
    """The transaction that an append waits for.

    Attributes:
        begun_at: revision of the key space when the last transaction began. A later one shows
            the cause of a refusal.
    """

    def __init__(self, on_known: Callable[[], None]) -> None:
        """Begin without a transaction.

        Args:
            on_known: is called when the result of a transaction is known.
        """
        self.begun_at = 0
        self._on_known = on_known
        self._state = ChangeState.NONE

    @property
    def is_pending(self) -> bool:
        """Return whether the result is not known yet."""
        return self._state is ChangeState.PENDING

    @property
    def is_done(self) -> bool:
        """Return whether the transaction is committed; the watch may deliver its rows later."""
        return self._state is ChangeState.DONE

    @property
    def is_refused(self) -> bool:
        """Return whether the transaction is not known to be committed."""
        return self._state is ChangeState.REFUSED

    @property
    def is_known(self) -> bool:
        """Return whether a transaction has ended, and is not forgotten yet."""
        return self._state in {ChangeState.DONE, ChangeState.REFUSED}

    def begin(self, host: ReplicaHost, change: KeyChange) -> None:
        """Begin a transaction."""
        assert not self.is_pending, "J1: an append has one transaction at a time"
        self._state = ChangeState.PENDING
        self.begun_at = host.keys.revision
        host.transact(change, self._on_result)

    def forget(self) -> None:
        """Forget the last transaction: its rows are seen, or it does not matter any more."""
        self._state = ChangeState.NONE

    def _on_result(self, is_committed: bool) -> None:
        self._state = ChangeState.DONE if is_committed else ChangeState.REFUSED
        self._on_known()
