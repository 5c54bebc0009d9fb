"""The stores of fragments, which can be slow and unavailable."""

import hashlib
from random import Random

from qsync_broker import events as ev
from qsync_broker.index import RemoteFragment
from qsync_sim.journals.clock import MS, SECOND, Clock
from qsync_sim.journals.disk import Disk
from qsync_sim.journals.observer import Observer
from qsync_sim.journals.process import Process


class Stores:
    """All stores.

    Attributes:
        fragments: the fragments of each journal and their bytes, by begin and end.
        are_down: whether they are unavailable.
        delay_ns: additional time of each request.
    """

    def __init__(
        self, rng: Random, clock: Clock, disks: dict[str, Disk], observer: Observer
    ) -> None:
        self.fragments: dict[str, dict[tuple[int, int], tuple[RemoteFragment, bytes]]] = {}
        self.are_down = False
        self.delay_ns = 0
        self._rng = rng
        self._clock = clock
        self._disks = disks
        self._observer = observer

    def list(self, process: Process, effect: ev.ListStores) -> None:
        """List the fragments of a journal."""

        def answer() -> None:
            if self.are_down:
                process.feed(ev.Listed(effect.token, [], "the store is unavailable"))
                return
            found = [one for one, _ in self.fragments.get(effect.journal, {}).values()]
            process.feed(ev.Listed(effect.token, found))

        self._clock.after(self._rng.randrange(MS, 50 * MS) + self.delay_ns, answer)

    def check(self, process: Process, effect: ev.CheckStore) -> None:
        """Check whether the store is available."""

        def answer() -> None:
            error = "the store is unavailable" if self.are_down else ""
            process.feed(ev.StoreChecked(effect.store, error))

        self._clock.after(self._rng.randrange(MS, 50 * MS), answer)

    def upload(self, process: Process, effect: ev.Upload) -> None:
        """Persist a fragment, whose bytes must be visible ones."""
        key, fragment = effect.key, effect.fragment

        def finish() -> None:
            if not process.is_alive:
                return
            if self.are_down:
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
            self.fragments.setdefault(key.journal, {})[fragment.begin, fragment.end] = remote, data
            if self._rng.random() > 0.05:  # otherwise the answer is lost, and the upload repeated
                process.feed(ev.Uploaded(effect.token, remote))
            else:
                process.feed(ev.Uploaded(effect.token, None, "the answer was lost"))

        self._clock.after(self._rng.randrange(5 * MS, 200 * MS) + self.delay_ns, finish)
