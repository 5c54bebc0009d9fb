"""The limits of one broker, and the error or effect when each is exceeded.

The values come from the constants that enforce them. `make references` writes the limits as a table
into docs/limits.md.
"""

from qsync_broker import (
    admission,
    allocation,
    append_content,
    batch,
    broker,
    directory,
    disk_queue,
    flow,
    front,
    grouping,
    labels,
    postfix,
    publisher,
    registers,
    serving,
    spec,
)
from qsync_broker.config import ServerConfig
from qsync_broker.http import appends
from qsync_broker.persister import UPLOADS_MAX
from qsync_broker.rpc import content, rest
from qsync_broker.rpc import service as rpc
from qsync_broker.rpc import serving as grpc
from qsync_node.server.limits import Limit, count, seconds, size

_CONFIG = {name: field.default for name, field in ServerConfig.model_fields.items()}
_OLDEST = "the oldest of them is closed"
_INVALID = "HTTP 400 or INVALID_ARGUMENT"

LIMITS: tuple[Limit, ...] = (
    Limit("connections without a complete first request", count(front.UNDECIDED_MAX), _OLDEST),
    Limit("time until the header of the first request", seconds(front.FIRST_S),
          "the connection is closed"),
    Limit("TLS handshakes in progress", count(serving.HANDSHAKES_MAX), _OLDEST),
    Limit("headers of a request", size(front.HEADER_MAX), "HTTP 431 or RESOURCE_EXHAUSTED"),
    Limit("idle time of a connection of HTTP/1.1", seconds(serving.IDLE_S),
          "the connection is closed"),
    Limit("requests of gRPC on a connection", count(grpc.STREAMS_MAX), "further ones wait"),
    Limit("requests of gRPC at a broker", count(grpc.REQUESTS_MAX), "RESOURCE_EXHAUSTED"),
    Limit("content of a request of gRPC that is not read yet", size(grpc.WINDOW),
          "its client waits"),
    Limit("appends of gRPC whose content is received before their turn",
          count(content.EARLY_READS), "further ones are not grouped"),
    Limit("content of gRPC that was received before its turn", size(content.EARLY_BYTES),
          "further appends are not grouped"),
    Limit("time until the first message of an append by gRPC", seconds(rpc.FIRST_S),
          "DEADLINE_EXCEEDED"),
    Limit("size of a message of gRPC", size(grpc.RECEIVED_MAX), "RESOURCE_EXHAUSTED"),
    Limit("body of a request to `/v1`", size(rest.BODY_MAX), "HTTP 400"),
    Limit("appends under way at a broker", count(broker.APPENDS_MAX),
          "HTTP 500 or UNKNOWN; retry"),
    Limit("content on its way to the disk", size(admission.UNSTORED_BYTES_MAX),
          "content of clients and peers is not read until less is"),
    Limit("bytes in one batch of the disk", size(disk_queue.BATCH_BYTES_MAX),
          "further ones are in the next batch"),
    Limit("size of an append that is grouped with others", size(grouping.SMALL),
          "the append is committed alone"),
    Limit("appends in a batch", count(batch.BATCH_APPENDS), "HTTP 400"),
    Limit("size of a batch", size(batch.BATCH_BYTES), "HTTP 413"),
    Limit("size of all batches at a broker", size(batch.BATCHES_BYTES), "HTTP 503; retry"),
    Limit("rate at which a client sends content, at least",
          f"{flow.MIN_RATE >> 10} KiB/s, over {flow.PATIENCE_NS / 1e9:g} s",
          "the append fails; nothing is appended"),
    Limit("replication of a journal", count(spec.REPLICATION_MAX), _INVALID),
    Limit("labels of a journal", count(spec.LABELS_MAX), _INVALID),
    Limit("labels of a selector", count(labels.SELECTOR_LABELS_MAX), _INVALID),
    Limit("registers of a journal", size(append_content.REGISTERS_BYTES_MAX),
          "HTTP 500 or UNKNOWN; nothing is appended"),
    Limit("number of registers of a journal", count(registers.REGISTERS_MAX),
          f"{_INVALID}, or as above; nothing is appended"),
    Limit("registers in the answer of an append by HTTP", size(appends.REGISTERS_HEADER_MAX),
          "the answer has no `X-Registers`"),
    Limit("stores of a journal", count(spec.STORES_MAX), _INVALID),
    Limit("length of the URL of a store", f"{count(spec.STORE_MAX)} characters", _INVALID),
    Limit("length of `path_postfix_template`",
          f"{count(postfix.TEMPLATE_MAX)} characters", _INVALID),
    Limit("changes in a request of Apply", count(directory.CHANGES_MAX), "INVALID_ARGUMENT"),
    Limit("distinct checks in a batch", size(batch.CHECKS_MAX), "HTTP 400"),
    Limit("registers to add or remove in a batch", count(batch.PAIRS_MAX), "HTTP 400"),
    Limit("fragments in one answer of ListFragments", count(rpc.FRAGMENTS_MAX),
          "the answer has a token for the next page"),
    Limit("uploads of fragments under way", count(UPLOADS_MAX), "further ones wait"),
    Limit("publications in one append of a primary", count(publisher.GROUP_MAX),
          "further ones are part of the next append"),
    Limit("freed memory that a broker keeps for further content, with glibc",
          size(allocation.KEPT_BYTES), "the memory of an idle broker may be as much greater"),
    Limit("free space of a broker's disk, at least", size(_CONFIG["disk_reserve"]),
          "HTTP 503 or INSUFFICIENT_JOURNAL_BROKERS; reads still work", "`disk_reserve`"),
    Limit("journals of a broker", count(_CONFIG["journal_limit"]),
          "other brokers get the assignments", "`journal_limit`"),
)  # fmt: skip
