"""The content of an append at its journal's primary: received, sent to the route, and proposed.

`qsync_broker.append` runs it in the states STREAM_CONTENT and READ_ACKNOWLEDGEMENTS. Nothing here
waits: each method handles the received parts, or returns why the append fails.
"""

import hashlib
from collections import deque
from typing import NamedTuple

from qsync_broker.labels import LabelSet
from qsync_broker.operations import Publication
from qsync_broker.pipeline import Pipeline
from qsync_broker.registers import REGISTERS_MAX, pack_registers, published_in, unpack_registers
from qsync_broker.replica import JournalReplica
from qsync_broker.requests import Append, AppendInput, Break, Finish, Piece, Suspend
from qsync_broker.status import Status

PIECE_BYTES = 128 << 10
REGISTERS_BYTES_MAX = 64 << 10
"""Maximum size of packed registers: each proposal carries them."""
OFFSET_MAX = (1 << 63) - 1
"""Greatest offset; peers and storage accept no greater one."""


class Rejection(NamedTuple):
    """Why content is not accepted.

    Attributes:
        status: the status of the answer; OK means an error of the stream.
        reason: the cause, for the client.
    """

    status: Status
    reason: str


class AppendContent:
    """The content of one append.

    Attributes:
        inputs: received parts that are not handled yet.
        publications: contents with ascending sequences, of an append of the broker itself.
        places: sequence, begin and end of each publication that this append has added.
        begin: offset of its first byte, once it is sent.
        end: offset after its last byte, once it is proposed.
        registers: the journal's registers after the append, once it is proposed.
        sequence: sequence of its proposal in its pipeline; 0 before.
        pipeline: the pipeline that it is sent on, or None before.
    """

    def __init__(self, request: Append, publications: tuple[Publication, ...] = ()) -> None:
        self.inputs: deque[AppendInput] = deque()
        self.publications = publications
        self.places: list[list[int]] = []
        self.begin = 0
        self.end = 0
        self.registers = LabelSet.of(())
        self.sequence = 0
        self.pipeline: Pipeline | None = None
        self._request = request
        self._sum = hashlib.sha1()
        self._is_finished = False

    @property
    def digest(self) -> bytes:
        """Return the SHA-1 of the content (20 bytes), as Gazette answers it."""
        return self._sum.digest()

    def start(self, replica: JournalReplica, pipeline: Pipeline) -> None:
        """Bind the content to the pipeline that carries all of it, at the end of the spool."""
        assert self.pipeline is None, "J10: the content of an append is sent on one pipeline"
        self.pipeline = pipeline
        self.begin = replica.spool.end

    def take_publications(self, replica: JournalReplica, published: int) -> bool:
        """Queue the publications that the journal lacks (X3).

        The spool is synchronised, and includes all proposals of this pipeline.

        Args:
            replica: the journal's copy at the primary.
            published: greatest sequence that the key space shows as published.

        Returns:
            False if publications are missing between the journal's last one and these.
        """
        spool = replica.spool
        floor = max(published_in(spool.registers), published)
        lacking = [one for one in self.publications if one.sequence > floor]
        if lacking and lacking[0].sequence != floor + 1:
            return False
        end = spool.end
        for one in lacking:
            self.places.append([one.sequence, end, end + len(one.content)])
            end += len(one.content)
        content = b"".join(one.content for one in lacking)
        for at in range(0, len(content), PIECE_BYTES):
            self.inputs.append(Piece(content[at : at + PIECE_BYTES]))
        self.inputs.append(Finish())
        replica.limit.take(len(content))
        return True

    def handle(
        self, received: AppendInput, replica: JournalReplica, pipeline: Pipeline, unix_s: int
    ) -> Rejection | None:
        """Send a received part to the route, or propose the content at its end.

        Args:
            received: the part.
            replica: the journal's copy at the primary.
            pipeline: the pipeline that the content is bound to.
            unix_s: the time of a proposal.

        Returns:
            Why the append fails, or None. `sequence` is greater than 0 after the proposal.
        """
        if isinstance(received, Break):
            return Rejection(Status.OK, received.reason)
        if self._is_finished:
            return Rejection(Status.OK, "content follows the end of the append")
        if isinstance(received, Piece):
            return self._send(received, replica, pipeline)
        self._is_finished = True
        return self._propose(replica, pipeline, unix_s)

    def _send(self, piece: Piece, replica: JournalReplica, pipeline: Pipeline) -> Rejection | None:
        if not replica.settings.is_writable or self._request.suspend >= Suspend.IF_FLUSHED:
            pipeline.abort()
            return Rejection(Status.NOT_ALLOWED, "")
        data = piece.data
        end = replica.spool.end + replica.spool.delta + len(data)
        if end > OFFSET_MAX:
            return Rejection(Status.OK, f"offset {end} would exceed {OFFSET_MAX}")
        self._sum.update(data)
        pipeline.send_content(data)
        return None

    def _propose(
        self, replica: JournalReplica, pipeline: Pipeline, unix_s: int
    ) -> Rejection | None:
        request, spool = self._request, replica.spool
        registers = unpack_registers(spool.registers)
        if request.union is not None or request.subtract is not None:
            if not spool.delta:
                return Rejection(Status.OK, "registers can be changed only if bytes are appended")
            registers = registers.subtract(request.subtract or LabelSet.of(()))
            registers = registers.union(request.union or LabelSet.of(()))
        self.registers = registers
        published = self.places[-1][0] if self.places else published_in(spool.registers)
        packed = pack_registers(registers, published)
        if request.union is not None and len(packed) > REGISTERS_BYTES_MAX:
            text = f"the registers would have {len(packed)} bytes: at most {REGISTERS_BYTES_MAX}"
            return Rejection(Status.OK, text)
        if request.union is not None and len(registers) > REGISTERS_MAX:
            text = f"the journal would have {len(registers)} registers: at most {REGISTERS_MAX}"
            return Rejection(Status.OK, text)
        self.sequence = pipeline.propose(packed, unix_s)
        self.end = spool.end
        return None
