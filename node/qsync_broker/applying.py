"""Changes of specifications by a client: when to try again, and when the outcome is known.

    state         event                                 next
    -----------   -----------------------------------   --------------------------------------------
    (new)         begin                                 waits for the expected revisions
    WAITING       the revision is reached, or           TRANSACTING; refused if a row has another
                  `EXPECTED_S`                          revision than the client expects
    TRANSACTING   committed                             OBSERVING, until the rows are as written
    TRANSACTING   not known to be committed             OBSERVING one more revision
    OBSERVING     the rows are as written               done
    OBSERVING     they are not, after that revision     TRANSACTING with the present rows, or
                  or `PAUSE_S`                          refused

Brokers write to the same rows. If a transaction did not commit, a later revision has either one of
their changes, or this one: the answer may have been lost.
"""

from typing import NamedTuple, TypeAlias

from qsync_broker.directory import SpecChange, is_carried_out, plan
from qsync_broker.keyspace import KeyChange, KeySpace

PAUSE_S = 0.2
EXPECTED_S = 2.0
"""Time in which the revision that a client expects must be known here; it may be none at all."""


class ApplyChange(NamedTuple):
    """Carry out a transaction; `transacted` gets the result."""

    change: KeyChange


class Await(NamedTuple):
    """Wait for a revision, without limit if `timeout_s` is None; then call `observed`."""

    revision: int
    timeout_s: float | None


class Done(NamedTuple):
    """The end: whether all rows had the expected revisions."""

    is_applied: bool


ApplyStep: TypeAlias = ApplyChange | Await | Done


class Applying:
    """One request to change specifications. Each method returns what to do next."""

    def __init__(self, keys: KeySpace, changes: list[SpecChange]) -> None:
        """Prepare the request.

        Args:
            keys: the broker's copy of the key space.
            changes: the checked changes.
        """
        self._keys = keys
        self._changes = changes
        self._tried: KeyChange | None = None
        self._is_committed = False

    def begin(self) -> ApplyStep:
        """Wait for the revisions that the client knows."""
        expected = max([change.expected for change in self._changes], default=0)
        return Await(max(expected, 0), EXPECTED_S)

    def transacted(self, is_committed: bool) -> ApplyStep:
        """Note whether the transaction is known to be committed."""
        self._is_committed = is_committed
        return self._observe()

    def observed(self) -> ApplyStep:
        """Examine the rows after a revision was reached, or was waited for long enough."""
        if self._tried is None or not self._is_committed:
            return self._try_again()
        return self._observe()

    def _observe(self) -> ApplyStep:
        assert self._tried is not None
        if is_carried_out(self._keys, self._tried):
            return Done(True)
        return Await(self._keys.revision + 1, None if self._is_committed else PAUSE_S)

    def _try_again(self) -> ApplyStep:
        """Plan with the present rows.

        Raises:
            ChangeError: a new journal's name is a folder of another one, or in its folder.
        """
        if self._tried is not None and is_carried_out(self._keys, self._tried):
            return Done(True)
        self._tried = plan(self._keys, self._changes)
        return ApplyChange(self._tried) if self._tried is not None else Done(False)
