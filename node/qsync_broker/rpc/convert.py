"""Conversions between messages of the service (`journal.proto`) and the broker's own values.

Gazette's clients validate answers. Some of their rules are not those of Protocol Buffers:
a route without members has the primary -1, and the cluster of a header has no field that is 0.
"""

import hashlib
import struct
from typing import Any

from google.protobuf.duration_pb2 import Duration

from qsync_broker.index import RemoteFragment
from qsync_broker.keyspace import KeySpace
from qsync_broker.labels import LabelSelector, LabelSet, Wanted
from qsync_broker.replica import FragmentPart
from qsync_broker.requests import Append, Suspend
from qsync_broker.rpc import journal_pb2 as pb
from qsync_broker.spec import FragmentSpec, JournalSpec
from qsync_node.format.journals import BrokerId, JournalRow, Route

_SECOND_NS = 1_000_000_000
_SUM = struct.Struct(">QQI")


def cluster_id(cluster: str) -> int:
    """Return the number of a cluster in headers, made of its UUID; never 0."""
    digest = hashlib.sha256(cluster.encode()).digest()
    return int.from_bytes(digest[:8], "big") | 1


# --- headers --------------------------------------------------------------------------------------


def route_message(keys: KeySpace, route: Route) -> pb.Route:
    """Return a route with the endpoints of its brokers."""
    brokers = keys.brokers
    return pb.Route(
        members=[pb.ProcessSpec.ID(zone=one.zone, suffix=one.suffix) for one in route.members],
        primary=route.primary if route.members else -1,
        endpoints=[brokers[one].endpoint if one in brokers else "" for one in route.members],
    )


def header_message(
    keys: KeySpace, cluster: str, broker: BrokerId, route: Route, revision: int
) -> pb.Header:
    """Return the header of an answer, or of a request that is forwarded.

    Args:
        keys: the key space.
        cluster: UUID of the cluster.
        broker: broker that has answered, or must answer.
        route: route of the journal.
        revision: revision of the key space.
    """
    return pb.Header(
        process_id=pb.ProcessSpec.ID(zone=broker.zone, suffix=broker.suffix),
        route=route_message(keys, route),
        etcd=pb.Header.Etcd(
            cluster_id=cluster_id(cluster),
            member_id=cluster_id(f"{broker.zone}/{broker.suffix}"),
            revision=revision,
            raft_term=1,
        ),
    )


# --- labels ---------------------------------------------------------------------------------------


def labels_of(message: pb.LabelSet) -> LabelSet:
    """Return the labels of a message."""
    return LabelSet.of((label.name, label.value) for label in message.labels)


def labels_message(labels: LabelSet) -> pb.LabelSet:
    """Return the message of labels."""
    return pb.LabelSet(labels=[pb.Label(name=name, value=value) for name, value in labels])


def selector_message(selector: LabelSelector) -> pb.LabelSelector:
    """Return the message of a selector."""
    return pb.LabelSelector(
        include=_wanted_message(selector.include), exclude=_wanted_message(selector.exclude)
    )


def _wanted_message(labels: tuple[Wanted, ...]) -> pb.LabelSet:
    return pb.LabelSet(
        labels=[pb.Label(name=one.name, value=one.value, prefix=one.is_prefix) for one in labels]
    )


def selector_of(message: pb.LabelSelector) -> LabelSelector:
    """Return the selector of a message."""
    return LabelSelector(_wanted(message.include), _wanted(message.exclude))


def _wanted(message: pb.LabelSet) -> tuple[Wanted, ...]:
    return tuple(Wanted(label.name, label.value, label.prefix) for label in message.labels)


# --- specifications -------------------------------------------------------------------------------


def spec_of(message: pb.JournalSpec) -> JournalSpec:
    """Return the specification of a message, with all its values, valid or not."""
    fragment = message.fragment
    return JournalSpec(
        message.name,
        message.replication,
        labels_of(message.labels),
        FragmentSpec(
            fragment.length,
            fragment.compression_codec,
            tuple(fragment.stores),
            _nanoseconds(fragment.refresh_interval),
            _nanoseconds(fragment.retention),
            _nanoseconds(fragment.flush_interval),
            fragment.path_postfix_template,
        ),
        message.flags,
        message.max_append_rate,
    )


def spec_message(row: JournalRow) -> pb.JournalSpec:
    """Return the message of a journal's specification and suspension."""
    message = spec_to_message(JournalSpec.from_row(row.name, row.spec))
    if row.suspend_level or row.suspend_offset:
        message.suspend.level = enum_value(row.suspend_level)
        message.suspend.offset = row.suspend_offset
    return message


def spec_to_message(spec: JournalSpec) -> pb.JournalSpec:
    """Return the message of a specification, without a suspension."""
    fragment = spec.fragment
    return pb.JournalSpec(
        name=spec.name,
        replication=spec.replication,
        labels=labels_message(spec.labels),
        fragment=pb.JournalSpec.Fragment(
            length=fragment.length,
            compression_codec=enum_value(fragment.compression_codec),
            stores=fragment.stores,
            refresh_interval=_duration(fragment.refresh_ns),
            retention=_duration(fragment.retention_ns),
            flush_interval=_duration(fragment.flush_ns),
            path_postfix_template=fragment.path_postfix_template,
        ),
        flags=spec.flags,
        max_append_rate=spec.max_append_rate,
    )


def enum_value(number: int) -> Any:
    """Return the value of a field of an enumeration: protoc's annotations want their own class."""
    return int(number)


def _nanoseconds(message: Duration) -> int:
    return int(message.seconds) * _SECOND_NS + int(message.nanos)


def _duration(duration_ns: int) -> Duration:
    seconds, nanos = divmod(abs(duration_ns), _SECOND_NS)
    sign = -1 if duration_ns < 0 else 1
    return Duration(seconds=sign * seconds, nanos=sign * nanos)


# --- fragments ------------------------------------------------------------------------------------


def sum_message(checksum: bytes) -> pb.SHA1Sum:
    """Return the message of a checksum of 20 bytes."""
    part1, part2, part3 = _SUM.unpack(checksum)
    return pb.SHA1Sum(part1=part1, part2=part2, part3=part3)


def sum_of(message: pb.SHA1Sum) -> bytes:
    """Return the checksum of a message."""
    return _SUM.pack(message.part1, message.part2, message.part3)


def fragment_message(journal: str, part: FragmentPart) -> pb.Fragment:
    """Return the description of a fragment."""
    message = pb.Fragment(
        journal=journal,
        begin=part.begin,
        end=part.end,
        sum=sum_message(part.sum),
        compression_codec=enum_value(part.codec),
    )
    if part.remote is not None:
        message.backing_store = part.remote.store
        message.mod_time = part.remote.mod_time
        message.path_postfix = _postfix(journal, part.remote)
    return message


def _postfix(journal: str, fragment: RemoteFragment) -> str:
    return fragment.path.rpartition("/")[0].removeprefix(journal).strip("/")


# --- appends --------------------------------------------------------------------------------------


def append_of(message: pb.AppendRequest) -> Append:
    """Return the append that the first message of a request describes."""
    has = message.HasField
    return Append(
        message.journal,
        message.offset,
        selector_of(message.check_registers) if has("check_registers") else None,
        labels_of(message.union_registers) if has("union_registers") else None,
        labels_of(message.subtract_registers) if has("subtract_registers") else None,
        Suspend(int(message.suspend)),
        not message.do_not_proxy,
        max(message.min_etcd_revision, message.header.etcd.revision),
    )
