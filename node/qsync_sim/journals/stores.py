"""The stores of fragments, which can be slow and unavailable.

A store that a specification does not name any more is copied to the present ones, as its owner has
to. The copy contains all that brokers persist while they do not know the new specification.
"""

import hashlib
from random import Random

from qsync_broker import events as ev
from qsync_broker.index import RemoteFragment
from qsync_broker.spec import JournalSpec
from qsync_sim.journals.clock import MS, SECOND, Clock
from qsync_sim.journals.disk import SimBrokerDisk
from qsync_sim.journals.keys import SimKeySpace
from qsync_sim.journals.observer import Observer, Persisted
from qsync_sim.journals.process import SimBroker


class Stores:
    """All stores.

    Attributes:
        fragments: the fragments of each journal and their bytes, by store, begin and end.
        are_down: whether they are unavailable.
        are_full: whether they can be listed, but take no fragment.
        delay_ns: additional time of each request.
    """

    def __init__(
        self,
        rng: Random,
        clock: Clock,
        disks: dict[str, SimBrokerDisk],
        observer: Observer,
        keys: SimKeySpace,
    ) -> None:
        self.fragments: dict[str, dict[tuple[str, int, int], tuple[RemoteFragment, bytes]]] = {}
        self.are_down = self.are_full = False
        self.delay_ns = 0
        self._rng = rng
        self._clock = clock
        self._disks = disks
        self._observer = observer
        self._keys = keys

    def list(self, process: SimBroker, effect: ev.ListStores) -> None:
        """List the fragments of a journal."""

        def answer() -> None:
            if self.are_down:
                process.feed(ev.StoreListed(effect.token, [], "the store is unavailable"))
                return
            found = [one for one, _ in self.fragments.get(effect.journal, {}).values()]
            listed = [one for one in found if one.store in effect.stores]
            process.feed(ev.StoreListed(effect.token, listed))

        self._clock.after(self._rng.randrange(MS, 50 * MS) + self.delay_ns, answer)

    def check(self, process: SimBroker, effect: ev.CheckStore) -> None:
        """Check whether the store is available."""

        def answer() -> None:
            error = "the store is unavailable" if self.are_down else ""
            process.feed(ev.StoreChecked(effect.store, error))

        self._clock.after(self._rng.randrange(MS, 50 * MS), answer)

    def upload(self, process: SimBroker, effect: ev.UploadFragment) -> None:
        """Persist a fragment, whose bytes must be visible ones."""
        key, fragment = effect.key, effect.fragment

        def finish() -> None:
            if not process.is_alive:
                return
            if self.are_down or self.are_full:
                error = "the store is unavailable"
                process.feed(ev.Uploaded(effect.token, None, error))
                return
            data = self._disks[process.name].read(key, fragment.begin, fragment.end)
            if not data:
                process.feed(ev.Uploaded(effect.token, None, "the spool was dropped"))
                return
            assert hashlib.sha1(data).digest() == fragment.sum, "an upload has another sum"
            self._observer.note_visible(key.journal, fragment.begin, data)
            remote = RemoteFragment(
                fragment.begin,
                fragment.end,
                fragment.sum,
                fragment.codec,
                effect.store,
                f"{fragment.begin}-{fragment.end}",
                1_700_000_000 + self._clock.now_ns // SECOND,
            )
            self._put(key.journal, remote, data)
            if effect.store in self._known(process, key.journal):
                self._copy(key.journal, remote, data)
            if self._rng.random() > 0.05:  # otherwise the answer is lost, and the upload repeated
                process.feed(ev.Uploaded(effect.token, remote))
            else:
                process.feed(ev.Uploaded(effect.token, None, "the answer was lost"))

        self._clock.after(self._rng.randrange(5 * MS, 200 * MS) + self.delay_ns, finish)

    # --- changes of the specification ---------------------------------------------------------

    def replace(self, journal: str, *urls: str) -> None:
        """Replace the stores of a journal by others, and copy its fragments to them."""
        self._keys.use_stores(journal, urls)
        for remote, data in list(self.fragments.get(journal, {}).values()):
            self._copy(journal, remote, data)

    @property
    def spans(self) -> Persisted:
        """Return begins and ends of the fragments of each journal that are in its stores."""
        return {
            journal: [
                (begin, end)
                for store, begin, end in fragments
                if store in self._keys.spec(journal).fragment.stores
            ]
            for journal, fragments in self.fragments.items()
        }

    @staticmethod
    def _known(process: SimBroker, journal: str) -> tuple[str, ...]:
        """Return the stores of a journal that a broker knows."""
        row = process.core.keys.journals.get(journal)
        return JournalSpec.from_row(journal, row.spec).fragment.stores if row is not None else ()

    def _copy(self, journal: str, remote: RemoteFragment, data: bytes) -> None:
        stores = self._keys.spec(journal).fragment.stores
        if stores and remote.store not in stores:
            self._put(journal, remote._replace(store=stores[0]), data)

    def _put(self, journal: str, remote: RemoteFragment, data: bytes) -> None:
        fragments = self.fragments.setdefault(journal, {})
        fragments[remote.store, remote.begin, remote.end] = remote, data
