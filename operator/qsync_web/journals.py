"""Brokers and journals of the page: a pure function of observations, with bounded lists."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from qsync_web.page import shortened

JOURNALS_MAX = 25
BROKERS_MAX = 100
PART_MAX = 200
"""Characters of the text that selects journals."""


@dataclass(frozen=True, slots=True)
class PageBroker:
    """One broker; None is unknown.

    Attributes:
        name: name of its member.
        state: "ready", "hands over", "no lease" or "does not answer".
        zone: its zone, or "".
        assignments: number of its journals.
        primaries: number of journals of which it is the primary.
        bytes: content on its disk.
        unpersisted: completed fragments that are not known to be in a store.
        address: its address, or "".
    """

    name: str
    state: str
    zone: str = ""
    assignments: int | None = None
    primaries: int | None = None
    bytes: int | None = None
    unpersisted: int | None = None
    address: str = ""


@dataclass(frozen=True, slots=True)
class PageJournal:
    """One journal; None is unknown.

    Attributes:
        name: its name.
        state: Writable, or the reason of its gravest problem.
        message: sentence about the problem, or "".
        is_failing: whether the state is a problem.
        primary: name of its primary, or "".
        brokers: names of its brokers.
        replication: number of brokers that it must have.
        head: its write head.
        fragments: number of its fragments.
        bytes: content of its fragments.
        lag: bytes that are not in a store; None also without a store.
        has_store: whether it has a store.
    """

    name: str
    state: str
    message: str = ""
    is_failing: bool = False
    primary: str = ""
    brokers: tuple[str, ...] = ()
    replication: int | None = None
    head: int | None = None
    fragments: int | None = None
    bytes: int | None = None
    lag: int | None = None
    has_store: bool | None = None


@dataclass(frozen=True, slots=True)
class PageJournals:
    """One observation of brokers and journals.

    Attributes:
        brokers: the brokers.
        journals: journals, in any order.
        total: number of journals that match the wanted part of a name.
        counts: numbers of all journals, and of those with each kind of problem.
        note: why the list is not complete, or "".
    """

    brokers: list[PageBroker]
    journals: list[PageJournal] = field(default_factory=list)
    total: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    note: str = ""


def journals_document(found: PageJournals) -> dict[str, Any]:
    """Return brokers and journals as JSON: journals with a problem first, then by name."""
    ordered = sorted(found.journals, key=lambda one: (not one.is_failing, one.name))
    shown = ordered[:JOURNALS_MAX]
    return {
        "brokers": [asdict(_broker(one)) for one in found.brokers[:BROKERS_MAX]],
        "journals": [asdict(_journal(one)) for one in shown],
        "total": max(found.total, len(ordered)),
        "counts": found.counts,
        "note": shortened(found.note),
    }


def matching(journals: Iterable[PageJournal], part: str) -> list[PageJournal]:
    """Return the journals whose names contain a text."""
    return [one for one in journals if part in one.name]


def _broker(broker: PageBroker) -> PageBroker:
    return replace(broker, zone=shortened(broker.zone), address=shortened(broker.address))


def _journal(journal: PageJournal) -> PageJournal:
    return replace(journal, name=shortened(journal.name), message=shortened(journal.message))
