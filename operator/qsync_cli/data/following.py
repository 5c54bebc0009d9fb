"""Confirmed changes from any member of a cluster: this moves on when a member fails.

Confirmed rows are the same on every member, so a feed continues at another one after the last index
that arrived (rule F5). Memory is bounded by one read of a socket and one row.
"""

import contextlib
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from qsync_cli.data.connecting import Endpoint
from qsync_cli.failure import Failure, FailureReason
from qsync_client import AccessDenied, ErrorCode, Row, Space
from qsync_client.errors import DENIED
from qsync_client.feed import Changed, Feed, FeedRefused, Finished, SnapshotTuple, Started

CONNECT_S = 3.0
SILENCE_S = 5.0
"""A member sends a heartbeat every 0.5 s, so longer silence is a lost connection."""
RETRY_S = 0.2
PATIENCE_S = 30.0
"""Time without an answer of any member after which a feed ends with an error."""
_READ_BYTES = 1 << 18
_FINAL = frozenset({*map(int, DENIED), int(ErrorCode.REPLICASET_UUID_MISMATCH)})


@dataclass(slots=True)
class Position:
    """How far a feed has come.

    Attributes:
        index: index of the last row that arrived.
        replicaset: UUID of the cluster after the first answer.
    """

    index: int
    replicaset: str = ""


def follow(
    endpoint: Endpoint,
    position: Position,
    spaces: tuple[int, ...],
    end: int | None,
    report: Callable[[str], None] = lambda text: None,
) -> Iterator[list[Changed]]:
    """Yield the changes after a position in groups, as they arrive.

    Args:
        endpoint: addresses and credentials.
        position: where to begin; it moves with the rows that were yielded.
        spaces: ids of the spaces, none for all.
        end: last index, or None to continue until the caller stops.
        report: receives one sentence for each lost connection.

    Raises:
        Failure: no member has the rows, none answers, or the user may not read the spaces.
    """
    answered_s = time.monotonic()
    gaps: set[str] = set()
    reported = dict.fromkeys(endpoint.addresses, "")
    while end is None or position.index < end:
        for address in endpoint.addresses:
            before = position.index
            try:
                for changes in _rows(endpoint, address, position, spaces, end):
                    gaps.clear()
                    yield changes
                    answered_s = time.monotonic()  # the caller may have taken any time
            except (OSError, FeedRefused) as error:
                _check_final(error, position, gaps, address, endpoint)
                text = f"{address}: {error}; continuing after index {position.index}"
                # An unavailable member is reported once; a gap is not, unless all have it.
                if getattr(error, "code", 0) != ErrorCode.XLOG_GAP and text != reported[address]:
                    reported[address] = text
                    report(text)
            if end is not None and position.index >= end:
                return
            if position.index > before:
                break
        if time.monotonic() - answered_s > PATIENCE_S:
            raise Failure(
                FailureReason.UNREACHABLE,
                f"no member has sent changes for {PATIENCE_S:g} s: check the status of the "
                f"cluster, then continue with --from {position.index + 1}",
            )
        time.sleep(RETRY_S)


def _check_final(
    error: Exception, position: Position, gaps: set[str], address: str, endpoint: Endpoint
) -> None:
    """Raise `Failure` if no other attempt can succeed."""
    code = getattr(error, "code", 0)
    if code in DENIED:
        raise AccessDenied(code, str(error)) from error
    if code in _FINAL:
        raise Failure(FailureReason.REFUSED, str(error)) from error
    if code == ErrorCode.XLOG_GAP:
        gaps.add(address)
        if len(gaps) == len(endpoint.addresses):
            raise Failure(
                FailureReason.NOT_FOUND,
                f"the changes from index {position.index + 1} are no longer in the log of any "
                "member: export the spaces with `qsync export --consistent`, and continue with "
                "`qsync tail --from` the index that it prints",
            ) from error


def _rows(
    endpoint: Endpoint,
    address: str,
    position: Position,
    spaces: tuple[int, ...],
    end: int | None,
) -> Iterator[list[Changed]]:
    feed = Feed.changes(
        endpoint.user, endpoint.password, after=position.index, spaces=spaces,
        replicaset=position.replicaset,
    )  # fmt: skip
    is_started = False
    with contextlib.closing(_connect(address, endpoint.tls)) as connection:
        while True:
            data = connection.recv(_READ_BYTES)
            if not data:
                raise ConnectionError("the member closed the connection")
            changes = []
            for event in feed.receive(data):
                if isinstance(event, Changed) and (end is None or event.index <= end):
                    changes.append(event)
                elif isinstance(event, Started):
                    position.replicaset = event.replicaset
                    is_started = True
            if output := feed.take_output():
                connection.sendall(output)
            if not is_started:
                continue
            reached = feed.index if end is None else min(feed.index, end)
            yield changes
            position.index = reached
            if end is not None and reached >= end:
                return
            feed.receive(b"")  # raises an error that followed the rows


def _connect(address: str, tls: ssl.SSLContext | None) -> socket.socket:
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S)
    if tls is not None:
        connection = tls.wrap_socket(connection, server_hostname=host)
    connection.settimeout(SILENCE_S)
    return connection


def snapshot(endpoint: Endpoint, spaces: Sequence[Space]) -> Iterator[tuple[list[Row], int]]:
    """Yield the rows of spaces at one confirmed index in groups, with the index in the last one.

    Raises:
        Failure: the connection to the member broke, or the user may not read a space.
    """
    failures = []
    for address in endpoint.addresses:
        has_begun = False
        try:
            for rows, index in _snapshot(endpoint, address, spaces):
                has_begun = True
                yield rows, index
            return
        except (OSError, FeedRefused) as error:
            code = getattr(error, "code", 0)
            if code in DENIED:
                raise AccessDenied(code, str(error)) from error
            failures.append(f"{address}: {error}")
            if has_begun:
                break  # another member has another snapshot
    names = ", ".join(space.name for space in spaces)
    raise Failure(
        FailureReason.UNREACHABLE,
        f"the snapshot of {names} is incomplete: {'; '.join(failures)}; repeat the command",
    )


def _snapshot(
    endpoint: Endpoint, address: str, spaces: Sequence[Space]
) -> Iterator[tuple[list[Row], int]]:
    by_id = {space.id: space for space in spaces}
    feed = Feed.snapshot(endpoint.user, endpoint.password, spaces=list(by_id))
    with contextlib.closing(_connect(address, endpoint.tls)) as connection:
        connection.settimeout(PATIENCE_S)  # a snapshot has no heartbeats
        while True:
            data = connection.recv(_READ_BYTES)
            if not data:
                raise ConnectionError("the member closed the connection")
            events = feed.receive(data)
            if output := feed.take_output():
                connection.sendall(output)
            rows = [
                Row(event.row, by_id[event.space])
                for event in events
                if isinstance(event, SnapshotTuple) and event.space in by_id
            ]
            is_finished = bool(events) and isinstance(events[-1], Finished)
            if rows or is_finished:
                yield rows, feed.index if is_finished else 0
            if is_finished:
                return
            feed.receive(b"")  # raises an error that followed the rows
