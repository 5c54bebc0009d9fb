"""Tarantool replica gateway: JOIN, FETCH_SNAPSHOT, REGISTER and SUBSCRIBE for Tarantool replicas.

Theory. A Tarantool replica knows no terms, so it could neither truncate its log nor undo its own
rows. It therefore receives confirmed rows only and never votes (L7). Its data is a prefix of the
history that no failover changes. That keeps the gateway simple. Any member can serve the replica.
Its clock is a position in the log, because the history of terms yields the clock at every index. A
row that it cannot read is sent as a NOP (`rows.py`). Its ACKs are statistics and delay the
removal of files (S5).

A replica joins by a registration through the log, as a member of role `stock` that M4 never
promotes. It then receives a read view that contains the registration, and then a subscription.
Instances that keep `replication_anon` receive the view only.

A replica may SUBSCRIBE from a position that this member has not confirmed yet. Another member sent
it those rows, so they are confirmed and stay so (L3). This member answers once it has confirmed
them too.

An anonymous replica may list the user spaces that it wants, which Tarantool never does. The rows of
other user spaces then become NOPs, and the view omits their tuples (F1). The list of a user that
cannot read the universe applies to system spaces as well, and the user must be able to read each
listed space (F4). It may also name the index after which its rows begin, in place of a clock: a
consumer of changes counts rows and knows no terms (F5).

Back-pressure. After each group of rows a stream waits until the shell reports that the connection
has taken them. A step therefore holds one group per stream, from memory or from disk (T11).

Invariants

  Q1  No row after the confirmed index is sent.
  Q2  Rows are sent contiguously from a clock that this log passed; no LSN is skipped.
  Q3  For every row that is sent, this member knows whether a decision removed it
      (`served_log.py`): it knows the decisions since the state of this process run began.
"""

from collections.abc import Iterator
from typing import Any

from qsync_client.protocol.frame import encode_request
from qsync_node.consensus import effects as fx
from qsync_node.consensus.filtering import NEEDS_EVERYTHING
from qsync_node.consensus.membership import TARANTOOL_ROLE
from qsync_node.consensus.messages import Ack
from qsync_node.consensus.replica import Replica
from qsync_node.errors import ClientError, ErrorCode
from qsync_node.format.batch import LogBatch, cut_batch
from qsync_node.format.body import space_of
from qsync_node.format.frame import encode_error, encode_ok, encode_replication_row
from qsync_node.format.keys import Key, Type
from qsync_node.format.mp import pack
from qsync_node.format.row import LogRow
from qsync_node.format.vclock import is_equal, normalised, signature
from qsync_node.tarantool.access import GatewayAccess
from qsync_node.tarantool.rows import snapshot_row, tarantool_rows
from qsync_node.tarantool.served_log import ServedLog
from qsync_node.tarantool.wire import (
    OK,
    GatewaySession,
    WireStage,
    ok_packet,
    read_clock,
    read_fields,
    read_spaces,
    read_start,
    read_uuid,
)
from qsync_node.transactions.registrar import Registrar
from qsync_node.transactions.state import StatementState

HEARTBEAT_NS = 500_000_000
"""Half of Tarantool's `replication_timeout`; silence of four timeouts ends a connection."""
STALLED_NS = 600_000_000_000
_PINNED = (WireStage.VIEW, WireStage.LOADING)


class Gateway:
    """All Tarantool replicas that are connected to this member."""

    def __init__(self, replica: Replica, state: StatementState, registrar: Registrar) -> None:
        self.context = replica.context
        self.replica = replica
        self.state = state
        self.registrar = registrar
        self.sessions: dict[int, GatewaySession] = {}
        self.log = ServedLog(self.context)
        self._access = GatewayAccess(self.replica, self.state)

    def on_state_loaded(self, index: int) -> None:
        """Reset after the state began at `index`, by recovery or another member's snapshot (Q3)."""
        self.log.restart(index)
        for session in list(self.sessions.values()):
            self._close(session)

    def pinned_index(self) -> int | None:
        """Return the index after which files are kept for views, or None (S4).

        The log after a view must stay until its replica follows: it loads the view first.
        """
        oldest_ns = self.context.now_ns - min(STALLED_NS, self.context.settings.retention_ns)
        pinned = [
            signature(session.clock)
            for session in self.sessions.values()
            if session.stage in _PINNED and session.touched_ns > oldest_ns
        ]
        return min(pinned, default=None)

    # --- requests -------------------------------------------------------------------------------

    def on_request(self, item: fx.TarantoolRequest) -> None:
        """Serve a request of a replica; a refusal is its answer, and ends the connection."""
        try:
            self._take(item)
        except ClientError as error:
            self._refuse(item.session, item.sync, error)

    def _take(self, item: fx.TarantoolRequest) -> None:
        if item.type == OK:
            self._on_ack(item)
            return
        if item.type == Type.VOTE:
            self._vote(item)
            return
        fields = read_fields(item.body)
        spaces = read_spaces(fields)
        self._access.check_served(spaces)
        is_anonymous = _is_anonymous(item.type, fields)
        is_confined = self._access.check_rights(item, spaces if is_anonymous else frozenset())
        if spaces and not is_anonymous:
            raise ClientError(ErrorCode.UNSUPPORTED, NEEDS_EVERYTHING)
        session = self.sessions.get(item.session)
        if session is None:
            session = self.sessions[item.session] = GatewaySession(item.session)
        session.sync, session.request, session.user = item.sync, item.type, item.user
        session.touched_ns = self.context.now_ns
        session.spaces, session.is_confined = spaces, is_confined
        if item.type == Type.FETCH_SNAPSHOT:
            self._begin_view(session)
        elif item.type == Type.SUBSCRIBE:
            self._subscribe(session, fields)
        else:
            session.uuid = read_uuid(fields, Key.INSTANCE_UUID)
            session.clock = read_clock(fields) if item.type == Type.REGISTER else {}
            self._access.check_identity(session.uuid)
            session.stage = WireStage.JOINING

    def _vote(self, item: fx.TarantoolRequest) -> None:
        """Answer the VOTE request that a starting replica sends before it identifies itself."""
        context = self.context
        replica = self.replica
        leader = replica.leader
        is_writable = leader is not None and leader.is_confirmed
        has_origin = context.has_origin
        first = self.log.first_servable() if has_origin else 0
        ballot = {
            1: not is_writable,
            4: not has_origin,
            2: normalised(context.limbo.confirmed_vclock),
            3: context.tail.history.vclock_at(first),
            5: False,
            6: has_origin,
        }
        body = pack({int(Key.BALLOT): ballot})
        answer = encode_ok(item.sync, self.state.database.schema_version, body)
        context.out.append(fx.TarantoolPackets(item.session, [answer], False, False))

    # --- joining --------------------------------------------------------------------------------

    def _join(self, session: GatewaySession) -> None:
        """Register the replica if necessary; continue when the registration is confirmed."""
        context = self.context
        replica = self.replica
        if context.confirmed_configuration.by_uuid(session.uuid) is not None:
            if session.request == Type.JOIN:
                self._begin_view(session)
            else:
                self._begin_rows(session)
            return
        leader = replica.leader
        if leader is None:
            known = context.configuration.by_uuid(replica.election.leader_uuid)
            where = (
                f"join through the leader, {known.name}"
                if known
                else ("the member knows no leader; retry")
            )
            raise ClientError(
                ErrorCode.READONLY, f"Can't modify data because this instance is read-only: {where}"
            )
        if not leader.is_confirmed or not self.registrar.is_open():
            raise ClientError(
                ErrorCode.LOADING, "the replica cannot join: the leader has no quorum yet; retry"
            )
        is_written = context.configuration.by_uuid(session.uuid) is not None
        if not is_written and not leader.changes.refusal():
            self.registrar.register_tarantool(session.uuid)

    def _begin_view(self, session: GatewaySession) -> None:
        context = self.context
        session.clock = normalised(context.limbo.confirmed_vclock)
        session.stage = WireStage.VIEW
        session.rows = self._view_packets(
            session, self.state.database.view(session.spaces).bodies()
        )
        index = context.limbo.confirmed_index
        if session.request == Type.JOIN:
            self._hold_files(session.uuid, index)

    @staticmethod
    def _view_packets(session: GatewaySession, bodies: Iterator[bytes]) -> Iterator[bytes]:
        sync, clock = session.sync, session.clock
        yield ok_packet(sync, clock)
        for body in bodies:
            if session.is_confined and space_of(body) not in session.spaces:
                continue
            row = snapshot_row(body)
            if row is not None:
                yield encode_replication_row(row, sync)
        yield ok_packet(sync, clock)
        if session.request == Type.JOIN:
            # The registration was confirmed before the view was taken: no rows are left to send.
            yield ok_packet(sync, clock)

    def _hold_files(self, uuid: str, index: int) -> None:
        """Record a registered replica's position, for status and to keep its files (S5)."""
        context = self.context
        replica = self.replica
        member = context.configuration.by_uuid(uuid)
        if replica.leader is None or member is None or member.role != TARANTOOL_ROLE:
            return
        ack = Ack(0, context.term, index, context.tail.term_at(index), 0, index)
        replica.leader.on_ack(uuid, ack)

    # --- subscribing ----------------------------------------------------------------------------

    def _subscribe(self, session: GatewaySession, fields: dict[int, Any]) -> None:
        replicaset = self.context.ballot.replicaset_uuid
        # Its rows are no copy of the cluster: such a replica may learn the UUID by the answer.
        is_part = bool(session.spaces) or int(Key.INDEX) in fields
        may_ask = is_part and int(Key.REPLICASET_UUID) not in fields
        given = replicaset if may_ask else read_uuid(fields, Key.REPLICASET_UUID)
        if given != replicaset:
            raise ClientError(
                ErrorCode.REPLICASET_UUID_MISMATCH,
                f"Replica set UUID mismatch: expected {replicaset}, got {given}",
            )
        session.uuid = read_uuid(fields, Key.INSTANCE_UUID)
        session.is_anonymous = bool(fields.get(Key.REPLICA_ANON, False))
        session.clock = read_clock(fields)
        session.start_index = read_start(fields) if session.is_anonymous else None
        self._access.check_identity(session.uuid)
        known = self.context.configuration.by_uuid(session.uuid)
        if session.is_confined and known is not None:
            raise ClientError(
                ErrorCode.ACCESS_DENIED,
                f"Replica {session.uuid} is registered: use another instance_uuid, or a user that "
                "can read the universe",
            )
        for other in list(self.sessions.values()):
            is_same = other is not session and other.uuid == session.uuid
            if is_same and (other.user == session.user or not session.is_confined):
                self._close(other)  # only the newest connection of a replica is kept
        session.stage = WireStage.WAITING

    def _begin_subscription(self, session: GatewaySession) -> None:
        context = self.context
        known = context.confirmed_configuration.by_uuid(session.uuid)
        if known is None and not session.is_anonymous:
            raise ClientError(
                ErrorCode.UNKNOWN_REPLICA,
                f"Replica {session.uuid} is not registered with replica set "
                f"{context.ballot.replicaset_uuid}",
            )
        self._begin_rows(session)
        fields: dict[int, Any] = {
            int(Key.VCLOCK): normalised(context.limbo.confirmed_vclock),
            int(Key.REPLICASET_UUID): context.ballot.replicaset_uuid,
        }
        if session.start_index is not None:
            fields[int(Key.INDEX)] = session.start_index  # members of old versions ignore the key
        answer = encode_request(OK, session.sync, pack(fields), replica_id=context.replica_id)
        self._hold_files(session.uuid, session.sent_index)
        context.report("tarantool_subscribed", uuid=session.uuid, index=session.sent_index)
        context.out.append(fx.TarantoolPackets(session.number, [answer], False, False))

    def _begin_rows(self, session: GatewaySession) -> None:
        """Start sending rows after the replica's clock, which this log must have passed (Q2)."""
        context = self.context
        if session.start_index is not None:
            session.clock = context.tail.history.vclock_at(session.start_index)
        index = signature(session.clock) if session.start_index is None else session.start_index
        if index < self.log.first_servable():
            raise _gap(index, self.log.first_servable())
        mine = context.tail.history.vclock_at(index)
        if index > context.limbo.confirmed_index or not is_equal(mine, session.clock):
            raise ClientError(
                ErrorCode.XLOG_GAP,
                f"the replica cannot follow: its vclock {session.clock} contains rows "
                "that this cluster never had; join with an empty directory and read_only "
                "= true",
            )
        session.sent_index = session.acked_index = index
        session.until_index = context.limbo.confirmed_index
        session.stage = WireStage.ROWS

    def _on_ack(self, item: fx.TarantoolRequest) -> None:
        session = self.sessions.get(item.session)
        if session is None or session.stage is not WireStage.ROWS:
            return
        index = signature(read_clock(read_fields(item.body)))
        if session.acked_index <= index <= session.sent_index:
            session.acked_index = index
            session.touched_ns = self.context.now_ns
            if not session.is_anonymous:
                self._hold_files(session.uuid, index)

    # --- streaming ------------------------------------------------------------------------------

    def tick(self) -> None:
        """Send the next group of every stream; called once per step."""
        for session in list(self.sessions.values()):
            try:
                self._advance(session)
            except ClientError as error:
                self._refuse(session.number, session.sync, error)

    def _advance(self, session: GatewaySession) -> None:
        context = self.context
        if session.stage in (WireStage.IDLE, WireStage.LOADING):
            return
        self._access.check_served(session.spaces)
        if session.stage is WireStage.JOINING:
            self._join(session)
        elif session.stage is WireStage.WAITING:
            start = signature(session.clock) if session.start_index is None else session.start_index
            if start <= context.limbo.confirmed_index:
                self._begin_subscription(session)
        if session.is_blocked:
            if context.now_ns - session.touched_ns > STALLED_NS:
                self._close(session)
        elif session.stage is WireStage.VIEW:
            self._send_view(session)
        elif session.stage is WireStage.ROWS:
            if session.uuid and context.is_removed(session.uuid):
                self._access.check_identity(session.uuid)
            self._pump(session)

    def _send_view(self, session: GatewaySession) -> None:
        packets: list[bytes] = []
        size = 0
        limit = self.context.settings.relay_chunk_bytes
        for packet in session.rows:
            packets.append(packet)
            size += len(packet)
            if size >= limit:
                break
        else:
            session.stage = WireStage.LOADING
        self._send(session, packets)

    def _pump(self, session: GatewaySession) -> None:
        context = self.context
        limit = context.limbo.confirmed_index
        if session.sent_index < limit and not session.is_reading:
            chunk = self.context.settings.relay_chunk_bytes
            batches = context.tail.batches_after(session.sent_index, chunk)
            if batches is None:
                self._check_kept(session)
                session.is_reading = True
                context.out.append(fx.ReadLog(-session.number, session.sent_index, chunk))
            else:
                self._send_rows(session, batches)
        if session.request == Type.REGISTER:
            if session.sent_index >= session.until_index:
                session.stage = WireStage.IDLE
                clock = context.tail.history.vclock_at(session.sent_index)
                self._send(session, [ok_packet(session.sync, clock)])
        elif context.now_ns >= session.heartbeat_at_ns:
            beat = LogRow(OK, context.replica_id, 0, context.wall_s)
            self._send(session, [encode_replication_row(beat, session.sync)])

    def _send_rows(self, session: GatewaySession, batches: list[LogBatch]) -> None:
        """Send rows up to the confirmed index, where a transaction ends (Q1)."""
        limit = self.context.limbo.confirmed_index
        member = self.context.confirmed_configuration.by_uuid(session.uuid)
        is_own_known = session.request == Type.SUBSCRIBE and not session.is_anonymous
        own_uuid, own_id = "", 0
        if member is not None and is_own_known:
            own_uuid, own_id = member.uuid, member.replica_id
        packets: list[bytes] = []
        for batch in batches:
            if batch.first_index > limit:
                break
            assert batch.first_index == session.sent_index + 1, "Q2: sent batches are contiguous"
            part = batch if batch.last_index <= limit else cut_batch(batch, limit)[0]
            rows = tarantool_rows(
                part, self.log.is_removed, own_uuid, own_id, session.spaces, session.is_confined
            )
            packets += [encode_replication_row(row, session.sync) for row in rows]
            session.sent_index = part.last_index
        if packets:
            self._send(session, packets)

    def _send(self, session: GatewaySession, packets: list[bytes]) -> None:
        context = self.context
        session.is_blocked = True
        session.touched_ns = context.now_ns
        session.heartbeat_at_ns = context.now_ns + HEARTBEAT_NS
        context.out.append(fx.TarantoolPackets(session.number, packets, True, False))

    def on_drained(self, item: fx.TarantoolDrained) -> None:
        """Continue a stream whose connection has taken the last group."""
        session = self.sessions.get(item.session)
        if session is not None:
            session.is_blocked = False

    def on_log_read(self, number: int, batches: list[LogBatch] | None) -> None:
        """Send rows that were read from disk; None if their files are gone."""
        session = self.sessions.get(-number)
        if session is None or not session.is_reading:
            return
        session.is_reading = False
        try:
            if batches is None:
                raise _gap(session.sent_index, self.log.first_servable())
            self._check_kept(session)
        except ClientError as error:
            self._refuse(session.number, session.sync, error)
            return
        if batches and batches[0].first_index == session.sent_index + 1:
            self._send_rows(session, batches)

    def _check_kept(self, session: GatewaySession) -> None:
        """Raise `ClientError` if another member's snapshot has replaced the log (S3, Q3)."""
        if session.sent_index + 1 < self.context.tail.first_available_index:
            raise _gap(session.sent_index, self.log.first_servable())

    # --- ends -----------------------------------------------------------------------------------

    def _refuse(self, number: int, sync: int, error: ClientError) -> None:
        self.sessions.pop(number, None)
        context = self.context
        context.report("tarantool_refused", code=int(error.code), reason=error.message)
        version = self.state.database.schema_version
        packet = encode_error(sync, version, int(error.code), error.message)
        context.out.append(fx.TarantoolPackets(number, [packet], False, True))

    def _close(self, session: GatewaySession) -> None:
        """Close without an error: a Tarantool replica then reconnects, but stops at some errors."""
        self.sessions.pop(session.number, None)
        self.context.out.append(fx.TarantoolPackets(session.number, [], False, True))

    def on_session_closed(self, number: int) -> None:
        """Forget a replica whose connection has ended."""
        self.sessions.pop(number, None)

    def status(self) -> list[dict[str, Any]]:
        """Return the positions of all connected replicas."""
        return [
            {
                "uuid": session.uuid,
                "is_anonymous": session.is_anonymous,
                "stage": session.stage.value,
                "sent_index": session.sent_index,
                "acknowledged_index": session.acked_index,
            }
            for session in self.sessions.values()
        ]


def _is_anonymous(request: int, fields: dict[int, Any]) -> bool:
    if request == Type.SUBSCRIBE:
        return bool(fields.get(Key.REPLICA_ANON, False))
    return request == Type.FETCH_SNAPSHOT


def _gap(index: int, first: int) -> ClientError:
    return ClientError(
        ErrorCode.XLOG_GAP,
        f"Missing .xlog file between LSN {index} and {first}: restart the replica, which "
        "then joins again",
    )
