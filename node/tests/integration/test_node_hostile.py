"""Well-formed frames with arbitrary contents get one clear error each, and members keep running."""

import json
import math
import random
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgpack
import pytest

from qsync_client.protocol.constants import Key, Type
from qsync_client.protocol.frame import encode_request
from qsync_client.protocol.spaces import SystemSpace
from qsync_node.format.mp import pack, unpack
from qsync_testing.processes import (
    ADMIN_PASSWORD,
    USER,
    ProcessCluster,
    running_cluster,
    wait_until,
)
from qsync_testing.raw import Raw

SPACE = 512
BEGIN, COMMIT, WATCH, EVENT = 14, 15, 74, 76
NOT_UTF8 = b"\xff\xfe"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    with running_cluster(tmp_path_factory.mktemp("hostile"), 3) as running:
        raw = log_in(running)
        parts = [[0, "unsigned"]]
        for space, row in (
            (SystemSpace.SPACE, [SPACE, 1, "hostile", "memtx", 0, {"is_sync": True}, []]),
            (SystemSpace.INDEX, [SPACE, 0, "primary", "tree", {"unique": True}, parts]),
        ):
            assert raw.ask(Type.INSERT, {Key.SPACE_ID: space, Key.TUPLE: row})[0] == 0
        yield running


def log_in(cluster: ProcessCluster, user: str = USER, **login: str) -> Raw:
    raw = Raw(cluster.leader().address)
    assert raw.log_in(user=user, **login) == 0
    return raw


def bugs(cluster: ProcessCluster) -> list[str]:
    """Return lines of the members' logs that a healthy node never writes."""
    found = []
    for node in cluster.nodes:
        for line in (node.folder / f"{node.name}.log").read_text().splitlines():
            if not line.startswith("{") or json.loads(line)["event"] == "bug":
                found.append(line)
    return found


def assert_unharmed(cluster: ProcessCluster, term: int) -> None:
    assert bugs(cluster) == []
    leader = cluster.leader()
    assert leader.status()["term"] == term
    raw = log_in(cluster)
    assert raw.ask(Type.REPLACE, {Key.SPACE_ID: SPACE, Key.TUPLE: [1, "alive"]})[0] == 0


def text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


HOSTILE: list[tuple[int, dict[int, Any]]] = [
    (
        4,
        {Key.SPACE_ID: SPACE, Key.INDEX_ID: 0, Key.KEY: [1], Key.TUPLE: [["=", text(NOT_UTF8), 1]]},
    ),
    (14, {Key.TIMEOUT: math.nan}),
    (14, {Key.TIMEOUT: math.inf}),
    (14, {Key.TIMEOUT: -math.inf}),
    (14, {Key.TIMEOUT: True}),
    (
        1,
        {
            Key.SPACE_ID: SPACE,
            Key.INDEX_ID: 0,
            Key.LIMIT: 1,
            Key.OFFSET: 0,
            Key.KEY: [1],
            Key.TXN_ISOLATION: [1],
        },
    ),
    (
        1,
        {
            Key.SPACE_ID: SPACE,
            Key.INDEX_ID: 0,
            Key.LIMIT: 1,
            Key.OFFSET: 0,
            Key.KEY: [1],
            Key.TXN_ISOLATION: {},
        },
    ),
    (
        1,
        {
            Key.SPACE_ID: SPACE,
            Key.INDEX_ID: 0,
            Key.LIMIT: 1,
            Key.OFFSET: 0,
            Key.KEY: [text(b"Y\xff")],
        },
    ),
    (77, {Key.EVENT_KEY: text(NOT_UTF8)}),
    (78, {Key.EVENT_KEY: text(NOT_UTF8)}),
    (10, {Key.FUNCTION_NAME: text(NOT_UTF8), Key.TUPLE: []}),
    (10, {Key.FUNCTION_NAME: "box.ctl.wait_rw", Key.TUPLE: [math.nan]}),
    (10, {Key.FUNCTION_NAME: "box.ctl.wait_rw", Key.TUPLE: [math.inf]}),
    (2, {Key.SPACE_ID: SystemSpace.SPACE, Key.TUPLE: [600, 1, text(NOT_UTF8), "memtx", 0, {}, []]}),
    (2, {Key.SPACE_ID: SystemSpace.SPACE, Key.TUPLE: [601, 1, "odd", text(NOT_UTF8), 0, {}, []]}),
    (2, {Key.SPACE_ID: SystemSpace.PRIV, Key.TUPLE: [1, 2, text(NOT_UTF8), 0, 1]}),
    (2, {Key.SPACE_ID: SystemSpace.USER, Key.TUPLE: [90, 1, text(NOT_UTF8), "user", {}]}),
    (7, {Key.USER_NAME: text(NOT_UTF8), Key.TUPLE: ["chap-sha1", b"x" * 20]}),
    (73, {Key.VERSION: [], Key.FEATURES: {}}),
]


@pytest.mark.parametrize("is_guest", [True, False])
def test_odd_values_are_errors_and_nothing_else(cluster: ProcessCluster, is_guest: bool) -> None:
    term = cluster.leader().status()["term"]
    for kind, fields in HOSTILE:
        raw = Raw(cluster.leader().address) if is_guest else log_in(cluster)
        raw.socket.settimeout(20)
        # A failure of the request must not lose a write that arrives together with it.
        other = pack({Key.SPACE_ID: SPACE, Key.TUPLE: [2, "beside"]})
        raw.send_bodies([(kind, pack(fields), 5), (3, other, 0)])
        if kind != 78 and fields.get(Key.FUNCTION_NAME) != "box.ctl.wait_rw":
            raw.answer()
        raw.socket.close()
    assert_unharmed(cluster, term)


@pytest.mark.parametrize("space", [320, 490, 491, 492])
@pytest.mark.parametrize("width", ["short", "long"])
def test_membership_rows_are_written_by_no_client(
    cluster: ProcessCluster, space: int, width: str
) -> None:
    raw = log_in(cluster, user="admin", password=ADMIN_PASSWORD)
    head = b"\xcd" + space.to_bytes(2, "big")
    if width == "long":
        head = b"\xce" + space.to_bytes(4, "big")
    row = {320: [9, "00000000-0000-4000-8000-000000000009"], 492: ["00000000", 3]}
    members = raw.ask(
        1,
        {
            Key.SPACE_ID: SystemSpace.CLUSTER,
            Key.INDEX_ID: 0,
            Key.LIMIT: 100,
            Key.OFFSET: 0,
            Key.ITERATOR: 2,
            Key.KEY: [],
        },
    )[1][Key.DATA]
    put = b"\x82\x10" + head + b"\x21" + pack(row.get(space, ["c", 1, 2, 3]))
    key = [1] if space in (320, 490) else ["c", 1]
    delete = b"\x83\x10" + head + b"\x11\x00\x20" + pack(key)
    update = b"\x84\x10" + head + b"\x11\x00\x20" + pack(key) + b"\x21" + pack([["=", 1, "x"]])
    for kind, body in ((2, put), (3, put), (5, delete), (4, update)):
        raw.send_bodies([(kind, body, 0)])
        code, answer = raw.answer()
        # Deleting a missing row changes nothing, so it is no error.
        assert code != 0 or answer[Key.DATA] == [], (kind, answer)
    again = raw.ask(
        1,
        {
            Key.SPACE_ID: SystemSpace.CLUSTER,
            Key.INDEX_ID: 0,
            Key.LIMIT: 100,
            Key.OFFSET: 0,
            Key.ITERATOR: 2,
            Key.KEY: [],
        },
    )[1][Key.DATA]
    assert again == members


def test_marks_of_the_bootstrap_stay(cluster: ProcessCluster) -> None:
    raw = log_in(cluster, user="admin", password=ADMIN_PASSWORD)
    for key in ("qsync_plan", "qsync_open"):
        assert (
            raw.ask(
                Type.DELETE, {Key.SPACE_ID: SystemSpace.SCHEMA, Key.INDEX_ID: 0, Key.KEY: [key]}
            )[0]
            != 0
        )
        assert (
            raw.ask(Type.REPLACE, {Key.SPACE_ID: SystemSpace.SCHEMA, Key.TUPLE: [key, 7]})[0] != 0
        )


def test_an_index_part_far_out_is_refused(cluster: ProcessCluster) -> None:
    raw = log_in(cluster)
    for field in (100_000, 10**7, 2**62):
        row = [SPACE, 1, "far", "tree", {"unique": False}, [[field, "unsigned"]]]
        assert raw.ask(Type.INSERT, {Key.SPACE_ID: SystemSpace.INDEX, Key.TUPLE: row})[0] == 14


@pytest.mark.parametrize(
    "settings",
    [
        {"checkpoint_bytes": "x"},
        {"quorum": []},
        {"quorum": "N/0"},
        {"quorum": "os.system(1)"},
        {"synchro_timeout_ns": -1},
        {"heartbeat_ns": True},
    ],
)
def test_a_bad_setting_is_refused_and_not_in_force(
    cluster: ProcessCluster, settings: dict[str, Any]
) -> None:
    term = cluster.leader().status()["term"]
    for node in cluster.nodes:
        assert node.post_status("/verb/configure", settings) == 409
    assert_unharmed(cluster, term)


def test_strings_that_are_not_utf8_survive_a_restart(cluster: ProcessCluster) -> None:
    raw = log_in(cluster, user="admin", password=ADMIN_PASSWORD)
    assert (
        raw.ask(
            Type.REPLACE,
            {Key.SPACE_ID: SystemSpace.SCHEMA, Key.TUPLE: ["a key of mine", text(NOT_UTF8)]},
        )[0]
        == 0
    )
    assert raw.ask(Type.REPLACE, {Key.SPACE_ID: SPACE, Key.TUPLE: [3, text(NOT_UTF8)]})[0] == 0
    for node in cluster.nodes:
        node.kill()
    for node in cluster.nodes:
        node.start(cluster.peers)
    wait_until("a leader", lambda: any(node.status()["is_writable"] for node in cluster.nodes))
    raw = log_in(cluster)
    found = raw.ask(
        1, {Key.SPACE_ID: SPACE, Key.INDEX_ID: 0, Key.LIMIT: 1, Key.OFFSET: 0, Key.KEY: [3]}
    )[1][Key.DATA]
    assert [row[1].encode("utf-8", "surrogateescape") for row in found] == [NOT_UTF8]
    assert bugs(cluster) == []


def test_random_requests_harm_no_other_client(cluster: ProcessCluster) -> None:
    """Send thousands of requests of random types, keys and values, from a fixed seed."""
    term = cluster.leader().status()["term"]
    rng = random.Random(20)
    keys = [int(key) for key in Key if Key.SPACE_ID <= key < Key.FETCH_POSITION]
    keys += [Key.FETCH_POSITION, Key.KEY, Key.TUPLE, Key.FUNCTION_NAME, Key.USER_NAME, Key.OPS]
    keys += [Key.AFTER_POSITION, Key.AFTER_TUPLE, Key.VERSION, Key.FEATURES, Key.TIMEOUT]
    keys += [Key.EVENT_KEY, Key.EVENT_DATA, Key.TXN_ISOLATION]
    kinds = [1, 2, 3, 4, 5, 7, 9, 10, 14, 15, 16, 64, 68, 69, 70, 73, 74, 75, 76, 77, 0x55]

    def value(depth: int = 0) -> Any:
        choices: list[Any] = [
            rng.choice([0, 1, -1, 280, 288, 320, SPACE, 2**31, 2**63, -(2**63), 2**64 - 1]),
            rng.choice([0.5, math.nan, math.inf, -1e308]),
            text(rng.randbytes(rng.randrange(4))),
            rng.randbytes(rng.randrange(4)),
            rng.choice([None, True, False]),
            msgpack.ExtType(rng.randrange(0, 6), rng.randbytes(rng.choice([1, 2, 8, 16]))),
            rng.choice(["=", "+", "-", "#", "!", ":", "&", "primary"]),
        ]
        if depth < 3:
            choices.append([value(depth + 1) for _ in range(rng.randrange(4))])
            choices.append({text(rng.randbytes(1)): value(depth + 1) for _ in range(2)})
        return rng.choice(choices)

    def fields() -> dict[int, Any]:
        made = {key: value() for key in rng.sample(keys, rng.randrange(len(keys)))}
        if rng.random() < 0.7:  # plausible enough to pass the first checks
            made[Key.SPACE_ID] = rng.choice([SPACE, SPACE, 280, 281, 289, 304, 306])
            made[Key.INDEX_ID] = 0
            made[Key.KEY] = [value() for _ in range(rng.randrange(3))]
            made[Key.TUPLE] = [value() for _ in range(rng.randrange(6))]
        return made

    for _ in range(60):
        raw = log_in(cluster) if rng.random() < 0.8 else Raw(cluster.leader().address)
        bodies = [(rng.choice(kinds), pack(fields()), rng.choice([0, 0, 0, 1])) for _ in range(50)]
        raw.send_bodies(bodies)
        with suppress(EOFError, ConnectionError):  # refused replication requests end the connection
            raw.drain()
        raw.socket.close()
    assert_unharmed(cluster, term)


def test_who_has_not_logged_in_makes_us_keep_little(cluster: ProcessCluster) -> None:
    large = {Key.SPACE_ID: SPACE, Key.TUPLE: [3, "x" * (3 << 20)]}
    code, answer = Raw(cluster.leader().address).ask(Type.REPLACE, large)
    assert code == 20
    assert "too big packet size" in answer[Key.ERROR_24]
    code, answer = log_in(cluster).ask(Type.REPLACE, large)
    assert code == 110, "after log-in the error names the tuple"


def test_who_still_sends_hears_why_it_is_refused(cluster: ProcessCluster) -> None:
    """Unread bytes would make the kernel reset the connection and discard the answer."""
    for _ in range(20):
        raw = Raw(cluster.leader().address)
        raw.send(pack(1 << 30) + bytes(4 << 20))
        code, answer = raw.answer()
        assert code == 20
        assert "too big packet size" in answer[Key.ERROR_24]
        with pytest.raises(EOFError):
            raw.answer()
        raw.socket.close()


def test_a_connection_watches_so_many_keys(cluster: ProcessCluster) -> None:
    raw = log_in(cluster)
    for number in range(1025):
        raw.send(encode_request(WATCH, number, pack({Key.EVENT_KEY: f"key {number}"})))
    while (frame := raw.frame())[0] == EVENT:
        assert frame[1] < 1024
    assert frame[1] == 1024
    assert "too many keys" in unpack(frame[3])[Key.ERROR_24]


def test_a_transaction_that_no_frame_carries_is_refused(cluster: ProcessCluster) -> None:
    raw = log_in(cluster)
    raw.socket.settimeout(60)
    large = "x" * 1_000_000
    requests = [(BEGIN, pack({}), 1)]
    requests += [
        (3, pack({Key.SPACE_ID: SPACE, Key.TUPLE: [100 + n, large]}), 1) for n in range(10)
    ]
    codes = []
    for request in requests:
        raw.send_bodies([request])
        codes.append(raw.answer()[0])
    assert codes == [0] * 9 + [2, 2], "8 MiB are taken, and no more"
    raw.send_bodies([(COMMIT, pack({}), 1)])
    assert raw.answer()[0] == 0
    assert_unharmed(cluster, cluster.leader().status()["term"])


def nested(levels: int) -> bytes:
    return b"\x91" * (levels - 1) + b"\x90"


def test_logged_values_nest_no_deeper_than_all_readers_accept(cluster: ProcessCluster) -> None:
    """A row is one level deeper than its tuple, so tuples must nest less than decoders allow."""
    head = b"\x82\x10\xcd\x02\x00\x21\x92"
    raw = log_in(cluster)
    for levels, code in ((98, 0), (99, 20), (1000, 20), (1021, 20), (1022, 20), (5000, 20)):
        raw.send_bodies([(3, head + b"\x07" + nested(levels), 0)])
        assert raw.answer()[0] == code, levels
    # The limit also covers operations that are logged without effect, and results of operations.
    deep = b"\x91\x93\xa1=\x63" + nested(1015)
    upsert = b"\x83\x10\xcd\x02\x00\x21\x91\x08\x28" + deep
    raw.send_bodies([(9, upsert, 0)])
    assert raw.answer()[0] == 20
    path = pack([["=", "[2]" + "[1]" * 96, 0]])[:-1] + nested(60)
    raw.send_bodies([(4, b"\x83\x10\xcd\x02\x00\x20\x91\x07\x21" + path, 0)])
    assert raw.answer()[0] == 20
    assert_unharmed(cluster, cluster.leader().status()["term"])


def test_bodies_that_decode_to_millions_of_values_stop_no_leader(cluster: ProcessCluster) -> None:
    """Decoding 15 MiB of empty maps takes seconds, longer than several election timeouts."""
    items = b"\xdd" + (15 << 20).to_bytes(4, "big") + b"\x80" * (15 << 20)
    head = b"\x10\xcd\x02\x00"
    operation = b"\x91\x93\xa1=\x01" + items
    bodies = {
        "insert": (2, b"\x82" + head + b"\x21" + items, 110),
        "select": (1, b"\x83" + head + b"\x12\x01\x20" + items, 1),
        "update": (4, b"\x83" + head + b"\x20\x91\x01\x21" + operation, 1),
        "upsert": (9, b"\x83" + head + b"\x21\x91\x01\x28" + operation, 1),
        "call": (10, b"\x82\x22\xa1f\x21" + items, 20),
        "watch": (WATCH, b"\x81\x57" + items, 20),
        "begin": (BEGIN, b"\x81\x56" + items, 20),
    }
    term = cluster.leader().status()["term"]
    other = log_in(cluster)
    assert other.ask(Type.REPLACE, {Key.SPACE_ID: SPACE, Key.TUPLE: [1, "alive"]})[0] == 0
    raw = log_in(cluster)
    raw.socket.settimeout(60)
    in_streams = {"insert": 1, "select": 2}
    for stream in in_streams.values():
        raw.send_bodies([(BEGIN, b"\x80", stream)])
        assert raw.answer()[0] == 0
    cases = [(name, int(name == "begin") * 3) for name in bodies] + list(in_streams.items())
    for name, stream in cases:
        kind, body, code = bodies[name]
        raw.send_bodies([(kind, body, stream)])
        started = time.monotonic()
        assert raw.answer()[0] == code, name
        assert time.monotonic() - started < 2.0, name
    assert_unharmed(cluster, term)


def test_unauthenticated_clients_leave_room_for_other_transactions(cluster: ProcessCluster) -> None:
    stranger = Raw(cluster.leader().address)
    stranger.socket.settimeout(60)
    stranger.send_bodies([(BEGIN, pack({}), n) for n in range(1, 1002)])
    codes = [stranger.answer()[0] for _ in range(1001)]
    assert codes[:100] == [0] * 100
    assert set(codes[100:]) == {16389}
    key = pack(
        {Key.SPACE_ID: SPACE, Key.INDEX_ID: 0, Key.LIMIT: 1, Key.OFFSET: 0, Key.KEY: ["x" * 10_000]}
    )
    codes = []
    for number in range(500):
        stranger.send_bodies([(1, key, number % 8 + 1)])
        codes.append(stranger.answer()[0])
    assert set(codes[:400]) == {42}
    assert set(codes[420:]) == {2}
    raw = log_in(cluster)
    for kind, fields in (
        (BEGIN, {}),
        (3, {Key.SPACE_ID: SPACE, Key.TUPLE: [9, "mine"]}),
        (COMMIT, {}),
    ):
        raw.send_bodies([(kind, pack(fields), 1)])
        assert raw.answer()[0] == 0
    raw.send_bodies([(BEGIN, pack({}), n) for n in range(1, 1102)])
    codes = [raw.answer()[0] for _ in range(1101)]
    assert codes == [0] * 1000 + [16389] * 101
    assert_unharmed(cluster, cluster.leader().status()["term"])
    stranger.socket.close()
    again = Raw(cluster.leader().address)
    wait_until("room again", lambda: again.ask(BEGIN, {}, stream_id=1)[0] == 0)


def test_frames_that_nearly_make_sense_are_answered_as_tarantool_does(
    cluster: ProcessCluster,
) -> None:
    raw = Raw(cluster.leader().address)
    for kind, body, code, words in (
        (64, b"\x80\x80", 20, "packet body"),
        (10, b"\x81\x22\xa1x\x80", 20, "Invalid MsgPack - packet body"),
        (1, b"", 69, "space id"),
        (7, pack({Key.USER_NAME: "app"}), 69, "'tuple'"),
        (7, pack({}), 69, "'user name'"),
    ):
        raw.send_bodies([(kind, body, 0)])
        found, answer = raw.answer()
        assert (found, words in answer[Key.ERROR_24]) == (code, True), (kind, body, answer)
    raw.send_bodies([(7, pack({Key.USER_NAME: "guest", Key.TUPLE: []}), 0)])
    assert raw.answer()[0] == 0, "guest has no password to prove"
    assert raw.ask(Type.PING, {})[0] == 0


@pytest.mark.parametrize(
    "key", [None, 5, [[], 1, 2], ["c", 1], ["c" * 1000, 1, 1], {}], ids=lambda key: repr(key)[:20]
)
def test_malformed_idempotency_key_is_refused_and_nothing_else(
    cluster: ProcessCluster, key: object
) -> None:
    term = cluster.leader().status()["term"]
    raw = log_in(cluster)
    assert raw.ask(BEGIN, {}, stream_id=3)[0] == 0
    assert (
        raw.ask(Type.REPLACE, {Key.SPACE_ID: SPACE, Key.TUPLE: [3, "keyed"]}, stream_id=3)[0] == 0
    )
    for kind, stream in ((COMMIT, 3), (3, 0)):
        body = pack({} if kind == COMMIT else {Key.SPACE_ID: SPACE, Key.TUPLE: [3, "keyed"]})
        packet = (
            pack({Key.REQUEST_TYPE: kind, Key.SYNC: 7, Key.STREAM_ID: stream, Key.IDEMPOTENCY: key})
            + body
        )
        raw.send(b"\xce" + len(packet).to_bytes(4, "big") + packet)
        assert raw.answer()[0] == 1
    assert_unharmed(cluster, term)
