"""Every recorded request gets the answer that a real Tarantool 2.6 gave, byte for byte.

The recording omits intended differences of the engine:

- A broken msgpack value inside a tuple is always error 20.
- Space IDs end at 2^31, and numbers are not truncated to 32 bits.
- A part of an index must name its field.
- UUIDs are scalars, as in later versions.
- An error names an unknown index type; 2.6 reads beyond the end of its list of names.
- Numbers of different kinds compare exactly; 2.6 rounds a double when it compares it with a
  decimal, and cannot order infinities and decimals at all.
- For a field number beyond 32 bits, the error text of 2.6 names another field.
"""

import random
from typing import Any

import msgpack
import pytest

from qsync_client.protocol.constants import Key
from qsync_node.engine import Database, Executed, Pending, Select, decode_request
from qsync_node.errors import ClientError
from qsync_testing.engine_answers import read_answers

SCENARIOS: list[Any] = read_answers()
UUID = "aaaaaaaa-0000-4000-8000-000000000001"
IDS = [name for name, _ in SCENARIOS]


class AnswerReplay:
    """A leader's engine that confirms late, and a follower that applies the confirmed rows."""

    def __init__(self, delay: int) -> None:
        self.database = Database.bootstrap(UUID)
        self.follower = Database.bootstrap(UUID)
        self.pending = Pending(self.database)
        self._waiting: list[Executed] = []
        self._delay = delay
        self._random = random.Random(delay)

    def ask(self, user_name: str, type_: int, body: bytes) -> tuple[list[Any], bool]:
        user = self.database.user_by_name(user_name)
        assert user is not None
        try:
            request = decode_request(type_, body)
            if isinstance(request, Select):
                return self.pending.select(request, user), True
            executed = self.pending.execute(request, user)
        except ClientError as error:
            return [error.code, error.message], False
        self.pending.push(executed.changes)
        self._waiting.append(executed)
        if executed.is_ddl:
            self.confirm(0)
        elif self._random.random() < 0.5:
            self.confirm(self._delay)
        return executed.answer, True

    def confirm(self, keep: int) -> None:
        while len(self._waiting) > keep:
            executed = self._waiting.pop(0)
            self.pending.confirm(executed.changes)
            for row in executed.rows:
                self.follower.apply(*row)

    def is_hash(self, body: bytes) -> bool:
        fields = msgpack.unpackb(body, strict_map_key=False, unicode_errors="surrogateescape")
        space = self.pending.find_space(fields[Key.SPACE_ID])
        return space is not None and not space.index_defs[fields.get(Key.INDEX_ID, 0)].is_tree


def check_scenario(requests: list[Any], delay: int) -> AnswerReplay:
    replay = AnswerReplay(delay)
    for user, type_, body, answer, is_ok in requests:
        given, given_ok = replay.ask(user, type_, body)
        if is_ok and given_ok and type_ == 1 and given != answer and replay.is_hash(body):
            given, answer = sorted(given), sorted(answer)
        assert (given, given_ok) == (answer, is_ok), (user, type_, body)
    replay.confirm(0)
    return replay


@pytest.mark.parametrize("delay", [0, 40])
@pytest.mark.parametrize(("name", "requests"), SCENARIOS, ids=IDS)
def test_answers_equal_tarantools(name: str, requests: list[Any], delay: int) -> None:
    replay = check_scenario(requests, delay)
    snapshot = list(replay.database.snapshot_bodies())
    assert snapshot == list(replay.follower.snapshot_bodies())
    assert replay.database.schema_version == replay.follower.schema_version
    assert replay.database.memory_bytes == replay.follower.memory_bytes
    loaded = Database()
    for body in snapshot:
        loaded.load(body)
    assert list(loaded.snapshot_bodies()) == snapshot
    assert loaded.memory_bytes == replay.database.memory_bytes


def test_recording_holds_errors_and_successes_of_every_request() -> None:
    seen = {(request[1], request[4]) for _, requests in SCENARIOS for request in requests}
    assert {(type_, is_ok) for type_ in (1, 2, 3, 4, 5, 9) for is_ok in (True, False)} <= seen
    codes = {r[3][0] for _, requests in SCENARIOS for r in requests if not r[4]}
    assert len(codes) > 40
