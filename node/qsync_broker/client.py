"""A client of the brokers of journals, by gRPC.

    async with JournalClient("http://127.0.0.1:8080") as client:
        commit = await client.append("orders/eu", [b"one\\n"])
        async for data in client.read("orders/eu", commit.begin):
            ...

Refusals that pass by themselves (a journal that has no primary yet) are repeated for `RETRY_S`. An
append whose connection broke is not repeated, because it may have been carried out.
"""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import grpc

from qsync_broker import requests
from qsync_broker.fragments import content_name
from qsync_broker.index import RemoteFragment
from qsync_broker.labels import LabelSelector, LabelSet, Wanted
from qsync_broker.ledger import AppendLedger, LedgerAppend, unknown_append
from qsync_broker.refusals import explain, explain_not_yet
from qsync_broker.rpc import journal_pb2 as pb
from qsync_broker.rpc import journal_pb2_grpc as pb_grpc
from qsync_broker.rpc.channels import CHANNEL_OPTIONS
from qsync_broker.rpc.convert import (
    enum_value,
    labels_message,
    labels_of,
    selector_message,
    spec_of,
    spec_to_message,
    sum_of,
)
from qsync_broker.spec import JournalSpec
from qsync_broker.status import Status, refusal
from qsync_node.errors import QsyncError

RETRY_S = 20.0
LAG_S = 1.0
"""Time in which a broker learns of bytes that another one has acknowledged."""
BARRIERS_MAX = 6
_LOST = "Internal error from Core"
"""The text of gRPC (github.com/grpc/grpc/issues/36066) if it loses a server's error."""
CHUNK = 256 << 10
PAGE = 1000
_PASSING = (
    Status.NO_JOURNAL_PRIMARY_BROKER,
    Status.NOT_JOURNAL_PRIMARY_BROKER,
    Status.INSUFFICIENT_JOURNAL_BROKERS,
)


class JournalError(QsyncError):
    """A request was refused, or its outcome is unknown; the text states the cause.

    Attributes:
        status: status of the answer, or None for an error of gRPC or HTTP.
        is_refused: whether the request was not carried out; otherwise, its outcome is unknown.
    """

    def __init__(
        self, text: str, status: Status | None = None, *, is_refused: bool = False
    ) -> None:
        super().__init__(text)
        self.status = status
        self.is_refused = is_refused or status is not None


class _BeyondHeadError(JournalError):
    """The offset of a read is after the write head."""


class ListedJournal(NamedTuple):
    """A journal.

    Attributes:
        spec: its specification.
        revision: revision of the last change of the specification.
        brokers: names of its brokers.
        primary: name of its primary, or "".
        suspend_level: 0 for none, 1 for partial, 2 for full.
    """

    spec: JournalSpec
    revision: int
    brokers: tuple[str, ...]
    primary: str
    suspend_level: int


class JournalCommit(NamedTuple):
    """An acknowledged append: its offsets, the SHA-1 of its bytes, and the registers after it."""

    begin: int
    end: int
    sum: bytes
    registers: LabelSet


def _pass_over(_begin: int, _end: int) -> None:
    """Ignore a gap: the offsets of the following parts show it."""


class JournalClient:
    """A client of one broker, which forwards requests to others."""

    def __init__(
        self,
        url: str,
        token: str = "",
        ca: Path | None = None,
        ledger: AppendLedger | None = None,
    ) -> None:
        """Prepare the connection; the first request opens it.

        Args:
            url: URL of any broker, for example `http://127.0.0.1:8080`.
            token: token that permits the requests, or "".
            ca: file with the authorities that may sign certificates of brokers; the default are
                those that gRPC trusts.
            ledger: record of the appends, written before their results are returned, or None.

        Raises:
            OSError: the file cannot be read.
            ValueError: the URL has another form.
        """
        self._ledger = ledger
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ValueError(
                f"invalid address {url!r} of a broker: use http://HOST:PORT or https://HOST:PORT"
            )
        if parts.scheme == "https":
            roots = ca.read_bytes() if ca is not None else None
            credentials = grpc.ssl_channel_credentials(roots)
            self._channel = grpc.aio.secure_channel(
                parts.netloc, credentials, options=CHANNEL_OPTIONS
            )
        else:
            self._channel = grpc.aio.insecure_channel(parts.netloc, options=CHANNEL_OPTIONS)
        self._stub: Any = pb_grpc.JournalStub(self._channel)
        self._metadata = [("authorization", f"Bearer {token}")] if token else []

    async def __aenter__(self) -> "JournalClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    # --- specifications -----------------------------------------------------------------------

    async def journals(self, selector: LabelSelector | None = None) -> list[ListedJournal]:
        """Return the selected journals, by name.

        Raises:
            JournalError: the broker cannot be reached, or refuses the request.
        """
        request = pb.ListRequest(selector=selector_message(selector or LabelSelector()))
        found: list[ListedJournal] = []
        try:
            async for message in self._stub.List(request, metadata=self._metadata):
                found += [_listed(journal) for journal in message.journals]
        except grpc.aio.AioRpcError as error:
            raise _error(error) from None
        return sorted(found, key=lambda journal: journal.spec.name)

    async def apply(self, changes: Iterable[tuple[JournalSpec, int]]) -> None:
        """Create or change journals, all or none.

        Args:
            changes: specifications, each with the revision of its last change: 0 if the journal
                must not exist, -1 for any.

        Raises:
            JournalError: a specification is invalid, or has another revision.
        """
        request = pb.ApplyRequest()
        for spec, revision in changes:
            request.changes.add(expect_mod_revision=revision, upsert=spec_to_message(spec))
        await self._apply(request)

    async def delete(self, journal: str, revision: int) -> None:
        """Delete a journal, its registers, and its bytes at the brokers; stores keep theirs.

        Args:
            journal: name of the journal.
            revision: revision of its last change, -1 for any.

        Raises:
            JournalError: the journal has another revision.
        """
        request = pb.ApplyRequest()
        request.changes.add(expect_mod_revision=revision, delete=journal)
        await self._apply(request)

    async def _apply(self, request: object) -> None:
        answer = await self._ask(self._stub.Apply, request)
        if answer.status == Status.ETCD_TRANSACTION_FAILED:
            raise JournalError(
                "a journal was changed meanwhile: list it again", Status.ETCD_TRANSACTION_FAILED
            )

    # --- appends ------------------------------------------------------------------------------

    async def append(
        self,
        journal: str,
        content: Iterable[bytes] = (),
        *,
        offset: int = 0,
        suspend: int = 0,
        check: LabelSelector | None = None,
        union: LabelSet | None = None,
        subtract: LabelSet | None = None,
    ) -> JournalCommit:
        """Append content as a whole.

        Args:
            journal: name of the journal.
            content: parts of the content; none for a barrier. Refusals are repeated as long as
                none was taken.
            offset: offset at which it must begin, 0 for any.
            suspend: effect on the suspension (`qsync_broker.append.Suspend`).
            check: selector that the registers must match.
            union: registers to set.
            subtract: registers to remove.

        Raises:
            JournalError: the append was refused; without a status, its outcome is unknown.
            AppendLedgerError: the append was carried out, but the ledger lacks it.
            Exception: `content` raised it; nothing was appended.
        """
        request = pb.AppendRequest(journal=journal, offset=offset, suspend=enum_value(suspend))
        if check is not None:
            request.check_registers.CopyFrom(selector_message(check))
        if union is not None:
            request.union_registers.CopyFrom(labels_message(union))
        if subtract is not None:
            request.subtract_registers.CopyFrom(labels_message(subtract))
        await self._until_ready(journal, suspend)
        sent = _Sent(content)
        try:
            answer = await self._append(request, content if self._ledger is None else sent)
        except (JournalError, asyncio.CancelledError):
            await self._record(unknown_append(journal, sent.size, sent.hashed.digest()))
            raise
        status = Status(answer.status)
        if status is not Status.OK:
            asked = requests.Append(journal, offset, suspend=requests.Suspend(suspend))
            text = explain(asked, status, reason=answer.store_health_error)
            raise JournalError(text, status)
        begin, end, checksum = answer.commit.begin, answer.commit.end, sum_of(answer.commit.sum)
        await self._record(LedgerAppend(journal, begin, end, checksum, time.time()))
        return JournalCommit(begin, end, checksum, labels_of(answer.registers))

    async def _record(self, append: LedgerAppend) -> None:
        if self._ledger is not None:
            await asyncio.to_thread(self._ledger.record, [append])

    async def _until_ready(self, journal: str, suspend: int) -> None:
        """Wait while the journal has no primary, or too few brokers, by barriers.

        If the append resumes a suspended journal, the barrier does, and waits for its brokers.
        """
        resumes = suspend == pb.AppendRequest.SUSPEND_RESUME
        wish = suspend if resumes else pb.AppendRequest.SUSPEND_KEEP
        deadline = asyncio.get_running_loop().time() + RETRY_S
        while await self._barrier(journal, wish) in _PASSING:
            if asyncio.get_running_loop().time() > deadline:
                return
            await asyncio.sleep(0.1)

    async def _barrier(self, journal: str, suspend: int) -> Status:
        """Return the status of an append without content.

        If a broker refuses it while the client still writes, gRPC may lose the broker's error. The
        barrier appends nothing, so it is repeated until the error arrives.
        """
        request = pb.AppendRequest(journal=journal, suspend=enum_value(suspend))
        for _ in range(BARRIERS_MAX - 1):
            try:
                return Status((await self._append(request, ())).status)
            except JournalError as error:
                if str(error) != _LOST:
                    raise
        return Status((await self._append(request, ())).status)

    async def _append(self, request: object, content: Iterable[bytes]) -> Any:
        failures: list[Exception] = []

        async def requests() -> AsyncIterator[Any]:
            yield request
            try:
                for part in content:
                    for begin in range(0, len(part), CHUNK):
                        yield pb.AppendRequest(content=part[begin : begin + CHUNK])
            except Exception as error:  # noqa: BLE001  # the content is the caller's
                failures.append(error)
                call.cancel()  # gRPC would do the same, and forget the error
                return
            yield pb.AppendRequest()

        call = self._stub.Append(requests(), metadata=self._metadata)
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            raise _error(error) from None
        except asyncio.CancelledError:
            if failures:
                raise failures[0] from None
            raise

    async def head(self, journal: str) -> int:
        """Return the write head of a journal.

        Raises:
            JournalError: the request was refused.
        """
        async for message in self._read(journal, -1, False, is_metadata=True):
            return int(message.offset)
        raise JournalError(f"{journal}: the broker stops; retry")

    async def reset_head(self, journal: str) -> int:
        """Let a journal whose last bytes are lost continue at its write head, and return the head.

        Raises:
            JournalError: the request was refused.
        """
        head = await self.head(journal)
        await self.append(journal, offset=head, suspend=pb.AppendRequest.SUSPEND_KEEP)
        return head

    # --- reads --------------------------------------------------------------------------------

    async def read(
        self,
        journal: str,
        offset: int = 0,
        *,
        is_blocking: bool = False,
        end: int = 0,
        on_gap: Callable[[int, int], None] = _pass_over,
    ) -> AsyncIterator[tuple[int, bytes]]:
        """Return parts of the content with their offsets.

        A read at the write head that does not wait returns nothing.

        Args:
            journal: name of the journal.
            offset: offset of the first byte; -1 for the write head.
            is_blocking: whether to wait for more at the head.
            end: offset after the last wanted byte, 0 for none.
            on_gap: function that gets begin and end of each range whose bytes are lost, and which
                the read passes over.

        Raises:
            JournalError: the request was refused, or the broker stops. With the status
                OFFSET_NOT_YET_AVAILABLE, the offset is after the write head, or no fragment has the
                next byte, although the write head is after it.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + LAG_S
        while True:
            try:
                async for part in self._parts(journal, offset, is_blocking, end, on_gap):
                    yield part
                return
            except _BeyondHeadError:
                # Another broker may have returned this offset, which this one learns soon.
                if loop.time() > deadline_s:
                    raise
            await asyncio.sleep(0.1)

    async def _parts(
        self,
        journal: str,
        offset: int,
        is_blocking: bool,
        end: int,
        on_gap: Callable[[int, int], None],
    ) -> AsyncIterator[tuple[int, bytes]]:
        async for message in self._read(journal, offset, is_blocking, end=end):
            if message.status == Status.OFFSET_NOT_YET_AVAILABLE:
                _check_end(journal, message.offset, message.write_head)
                return
            if 0 <= offset < message.offset:
                on_gap(offset, min(message.offset, end) if end else message.offset)
            offset = message.offset + len(message.content)
            if message.content:
                yield message.offset, message.content
        if not end or offset < end:
            raise JournalError(f"{journal}: the broker stops; read again from offset {offset}")

    async def _read(
        self,
        journal: str,
        offset: int,
        is_blocking: bool,
        *,
        end: int = 0,
        is_metadata: bool = False,
    ) -> AsyncIterator[Any]:
        request = pb.ReadRequest(
            journal=journal,
            offset=offset,
            block=is_blocking,
            end_offset=end,
            metadata_only=is_metadata,
        )
        try:
            async for message in self._stub.Read(request, metadata=self._metadata):
                status = Status(message.status)
                if status not in (Status.OK, Status.OFFSET_NOT_YET_AVAILABLE):
                    raise JournalError(refusal(journal, status), status)
                yield message
        except grpc.aio.AioRpcError as error:
            raise _error(error) from None

    async def fragments(self, journal: str) -> list[RemoteFragment]:
        """Return all fragments of a journal; the store of one that is not persisted is "".

        Raises:
            JournalError: the request was refused.
        """
        found: list[RemoteFragment] = []
        token = 0
        while True:
            request = pb.FragmentsRequest(journal=journal, next_page_token=token, page_limit=PAGE)
            answer = await self._ask(self._stub.ListFragments, request)
            status = Status(answer.status)
            if status is not Status.OK:
                raise JournalError(refusal(journal, status), status)
            found += [_fragment(one.spec) for one in answer.fragments]
            token = answer.next_page_token
            if not token:
                return found

    async def _ask(self, method: Any, request: Any) -> Any:
        try:
            return await method(request, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            raise _error(error) from None


class _Sent:
    """The parts of an append, of which size and checksum are kept."""

    def __init__(self, parts: Iterable[bytes]) -> None:
        self._parts = parts
        self.size = 0
        self.hashed = hashlib.sha1()

    def __iter__(self) -> Iterator[bytes]:
        for part in self._parts:
            self.size += len(part)
            self.hashed.update(part)
            yield part


def _check_end(journal: str, offset: int, head: int) -> None:
    """Raise JournalError if a read has not ended at the write head."""
    if offset != head:
        kind = _BeyondHeadError if offset > head else JournalError
        raise kind(explain_not_yet(journal, offset, head), Status.OFFSET_NOT_YET_AVAILABLE)


def selector_of_name(name: str) -> LabelSelector:
    """Return the selector of one journal."""
    return LabelSelector((Wanted("name", name),))


def _error(error: Any) -> JournalError:
    text = str(error.details() or error.code().name)
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        text = f"the broker cannot be reached: {text.splitlines()[0]}"
    return JournalError(text)


def _listed(message: Any) -> ListedJournal:
    route = message.route
    members = [member.suffix for member in route.members]
    return ListedJournal(
        spec_of(message.spec),
        message.mod_revision,
        tuple(members),
        members[route.primary] if 0 <= route.primary < len(members) else "",
        message.spec.suspend.level,
    )


def _fragment(message: Any) -> RemoteFragment:
    name = ""
    if message.mod_time:
        folder = "/".join(filter(None, (message.journal, message.path_postfix)))
        checksum = sum_of(message.sum)
        codec = message.compression_codec
        name = f"{folder}/{content_name(message.begin, message.end, checksum, codec)}"
    return RemoteFragment(
        message.begin,
        message.end,
        sum_of(message.sum),
        message.compression_codec,
        message.backing_store,
        name,
        message.mod_time,
    )
