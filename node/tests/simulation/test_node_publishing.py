"""Publications to journals: written with rows in one transaction, in the order of the log."""

from typing import Any

import pytest

from qsync_client.protocol.spaces import SystemSpace
from qsync_node.consensus import effects as fx
from qsync_node.consensus.settings import ConsensusSettings
from qsync_node.engine import publishing
from qsync_node.errors import ErrorCode
from qsync_node.format.journals import (
    JOURNAL_SPACE,
    PUBLICATION_SPACE,
    PUBLISHER_SPACE,
    PublisherRow,
    definitions,
    publish_function,
)
from qsync_sim.clients import build_body
from qsync_sim.shell import Shell
from qsync_testing.publications import (
    CALL,
    CALL_16,
    ID,
    JOURNAL,
    call,
    journal,
    publish,
    publishing_cluster,
    values,
)
from qsync_testing.worlds import (
    BEGIN,
    COMMIT,
    DELETE,
    INSERT,
    REPLACE,
    ROLLBACK,
    SELECT,
    UPDATE,
    Driven,
    get,
    put,
)

KEY = ["client-1", 1, 0]


@pytest.fixture
def driven() -> Driven:
    return publishing_cluster()


def rows(driven: Driven, space: int, shell: Shell | None = None) -> list[Any]:
    body = build_body(space, index=0, key=[], limit=100_000, iterator=2)
    return values(driven.ask(shell or driven.leader(), SELECT, body))


def publications(driven: Driven, shell: Shell | None = None) -> list[tuple[int, bytes]]:
    return [(row[2], row[3]) for row in rows(driven, PUBLICATION_SPACE, shell)]


def publisher(driven: Driven) -> PublisherRow:
    (row,) = rows(driven, PUBLISHER_SPACE)
    return PublisherRow(*row)


# --- sequences ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [CALL, CALL_16])
@pytest.mark.parametrize("where", ["leader", "follower"])
def test_publications_have_ascending_sequences_at_every_member(
    driven: Driven, where: str, kind: int
) -> None:
    shell = driven.leader() if where == "leader" else driven.followers()[0]
    assert values(driven.ask(shell, kind, publish(b"one"))) == [1]
    assert values(driven.ask(shell, kind, publish("two"))) == [2]
    driven.run(500)
    for member in driven.world.alive():
        assert publications(driven, member) == [(1, b"one"), (2, b"two")]
    assert publisher(driven) == PublisherRow(JOURNAL, ID, 2, 0, 6, [])


def test_transaction_commits_rows_and_publications_together(driven: Driven) -> None:
    leader = driven.leader()
    driven.ask(leader, BEGIN, stream=1)
    driven.ask(leader, REPLACE, put(1, "x"), stream=1)
    assert values(driven.ask(leader, CALL, publish(b"a"), stream=1)) == []
    assert values(driven.ask(leader, CALL, publish(b"b"), stream=1)) == []
    assert publications(driven) == []
    assert values(driven.ask(leader, COMMIT, stream=1)) == [[JOURNAL, 1], [JOURNAL, 2]]
    assert publications(driven) == [(1, b"a"), (2, b"b")]
    assert values(driven.ask(leader, SELECT, get(1))) == [[1, "x", 0]]


def test_rolled_back_transaction_publishes_nothing_and_uses_no_sequence(driven: Driven) -> None:
    leader = driven.leader()
    driven.ask(leader, BEGIN, stream=1)
    driven.ask(leader, CALL, publish(b"never"), stream=1)
    assert driven.ask(leader, ROLLBACK, stream=1).code == 0
    assert values(driven.ask(leader, CALL, publish(b"first"))) == [1]


def test_concurrent_publications_to_one_journal_do_not_conflict(driven: Driven) -> None:
    leader = driven.leader()
    for stream in (1, 2):
        driven.ask(leader, BEGIN, stream=stream)
        driven.ask(leader, REPLACE, put(stream, "x"), stream=stream)
        driven.ask(leader, CALL, publish(b"%d" % stream), stream=stream)
    assert values(driven.ask(leader, COMMIT, stream=2)) == [[JOURNAL, 1]]
    assert values(driven.ask(leader, COMMIT, stream=1)) == [[JOURNAL, 2]]
    assert publications(driven) == [(1, b"2"), (2, b"1")]


def test_conflict_over_rows_publishes_nothing(driven: Driven) -> None:
    leader = driven.leader()
    driven.ask(leader, BEGIN, stream=1)
    driven.ask(leader, SELECT, get(1), stream=1)
    driven.ask(leader, CALL, publish(b"never"), stream=1)
    driven.ask(leader, REPLACE, put(1, "other"))
    assert driven.ask(leader, COMMIT, stream=1).code == ErrorCode.TRANSACTION_CONFLICT
    assert publications(driven) == []


def test_retry_with_an_idempotency_key_publishes_once(driven: Driven) -> None:
    leader = driven.leader()
    first = driven.ask(leader, CALL, publish(b"once"), key=KEY)
    again = driven.ask(leader, CALL, publish(b"once"), key=KEY)
    assert (values(first), values(again)) == ([1], [])
    assert again.log_index == first.log_index
    other = driven.ask(leader, CALL, publish(b"other"), key=KEY)
    assert other.code == ErrorCode.KEY_REUSED
    assert publications(driven) == [(1, b"once")]


def test_key_is_refused_on_other_calls(driven: Driven) -> None:
    answer = driven.ask(driven.leader(), CALL, call("qsync.mark"), key=KEY)
    assert answer.code == ErrorCode.ILLEGAL_PARAMS


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (publish(b"x", "no/journal"), ErrorCode.NO_SUCH_JOURNAL),
        (publish(b""), ErrorCode.ILLEGAL_PARAMS),
        (call("qsync.publish", JOURNAL), ErrorCode.ILLEGAL_PARAMS),
        (call("qsync.publish", JOURNAL, 1), ErrorCode.ILLEGAL_PARAMS),
        (call("qsync.publish", 1, b"x"), ErrorCode.ILLEGAL_PARAMS),
        (publish(bytes(1 << 20)), ErrorCode.SLAB_ALLOC_MAX),
        (call("qsync.published", JOURNAL, ID, True, []), ErrorCode.ILLEGAL_PARAMS),
        (call("qsync.published", JOURNAL, ID, 1, [[1]]), ErrorCode.ILLEGAL_PARAMS),
        (call("qsync.published", JOURNAL, ID, 1, [[1, 0, -1]]), ErrorCode.ILLEGAL_PARAMS),
    ],
)
def test_invalid_call_is_refused_and_logs_nothing(
    driven: Driven, body: bytes, code: ErrorCode
) -> None:
    assert driven.ask(driven.leader(), CALL, body).code == code
    assert rows(driven, PUBLISHER_SPACE) == []


def test_without_journals_a_publication_is_refused() -> None:
    driven = Driven(1)
    answer = driven.ask(driven.leader(), CALL, publish(b"x"))
    assert answer.code == ErrorCode.NO_SUCH_JOURNAL


@pytest.mark.parametrize("created", range(len(definitions())))
def test_publications_are_refused_until_every_space_and_index_exists(created: int) -> None:
    driven = Driven(1)
    for space, fields in definitions()[:created]:
        assert driven.ask(driven.leader(), INSERT, build_body(space, tuple=fields)).code == 0
    answer = driven.ask(driven.leader(), CALL, publish(b"x"))
    assert answer.code == ErrorCode.NO_SUCH_JOURNAL
    node = driven.leader().node
    assert node is not None
    assert publishing.publisher_of(node.database, JOURNAL, ID) is None
    asked = driven.ask(driven.leader(), CALL, call("qsync.publication", JOURNAL, 1))
    assert asked.code == ErrorCode.NO_SUCH_JOURNAL or values(asked) == [{"state": "unknown"}]


@pytest.mark.parametrize("limit", ["PUBLICATIONS_MAX", "PENDING_BYTES_MAX"])
def test_publications_beyond_the_limits_are_refused(
    driven: Driven, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, limit, 2)
    leader = driven.leader()
    assert values(driven.ask(leader, CALL, publish(b"a"))) == [1]
    assert values(driven.ask(leader, CALL, publish(b"b"))) == [2]
    assert driven.ask(leader, CALL, publish(b"c")).code == ErrorCode.PUBLICATIONS_FULL
    assert driven.ask(leader, CALL, call("qsync.published", JOURNAL, ID, 1, [])).code == 0
    assert values(driven.ask(leader, CALL, publish(b"c"))) == [3]


@pytest.mark.parametrize("space", [PUBLICATION_SPACE, PUBLISHER_SPACE])
@pytest.mark.parametrize("stream", [0, 1])
def test_no_statement_changes_the_spaces(driven: Driven, space: int, stream: int) -> None:
    leader = driven.leader()
    assert driven.ask(leader, CALL, publish(b"x")).code == 0
    before = rows(driven, space)
    key = before[0][:3] if space == PUBLICATION_SPACE else before[0][:2]
    if stream:
        driven.ask(leader, BEGIN, stream=stream)
    for kind, body in (
        (INSERT, build_body(space, tuple=before[0])),
        (REPLACE, build_body(space, tuple=before[0])),
        (UPDATE, build_body(space, index=0, key=key, tuple=[["=", 3, 9]])),
        (DELETE, build_body(space, index=0, key=key)),
    ):
        answer = driven.ask(leader, kind, body, stream=stream)
        assert answer.code == ErrorCode.UNSUPPORTED
    assert rows(driven, space) == before


def ask_as(driven: Driven, user: str, body: bytes) -> int:
    sync = driven.next_sync()
    driven.leader().step([fx.Request(200, sync, CALL, body, 0, user, None)])
    driven.run(10_000, lambda: sync in driven.answers)
    return driven.answers[sync].code


def test_only_users_with_write_access_publish(driven: Driven) -> None:
    leader = driven.leader()
    row = [40, 1, "app", "user", {}]
    assert driven.ask(leader, INSERT, build_body(304, tuple=row)).code == 0
    usage = [1, 40, "universe", 0, 24]
    assert driven.ask(leader, INSERT, build_body(312, tuple=usage)).code == 0
    wanted = call("qsync.publication", JOURNAL, 1)
    for user in ("guest", "app"):
        assert ask_as(driven, user, publish(b"x")) == ErrorCode.ACCESS_DENIED
        assert ask_as(driven, user, wanted) == ErrorCode.ACCESS_DENIED
    for space, privilege in ((PUBLICATION_SPACE, 2), (PUBLISHER_SPACE, 1)):
        grant = [1, 40, "space", space, privilege]
        assert driven.ask(leader, INSERT, build_body(312, tuple=grant)).code == 0
    assert ask_as(driven, "app", publish(b"x")) == 0
    assert ask_as(driven, "app", wanted) == 0
    removal = call("qsync.published", JOURNAL, ID, 1, [])
    assert ask_as(driven, "app", removal) == ErrorCode.ACCESS_DENIED
    assert ask_as(driven, "app", call("qsync.discard", JOURNAL, ID)) == ErrorCode.ACCESS_DENIED
    assert publications(driven) == [(1, b"x")]


def function_row(number: int, name: str, owner: int = 1) -> list[Any]:
    head = [number, owner, name, 0, "LUA", "", "function", [], "any", "none", "none"]
    return [*head, False, False, True, ["LUA"], {}, "", "", ""]


@pytest.fixture
def limited(driven: Driven) -> Driven:
    """Return a world with more journals, and with a user who may log in only."""
    leader = driven.leader()
    for name in ("orders/us", "orders/eu/created", "ordersx/eu", "other/one"):
        assert driven.ask(leader, INSERT, journal(name)).code == 0
    for space, row in (
        (SystemSpace.USER, [40, 1, "app", "user", {}]),
        (312, [1, 40, "universe", 0, 24]),
    ):
        assert driven.ask(leader, INSERT, build_body(space, tuple=row)).code == 0
    return driven


def permitted(driven: Driven, user: str = "app") -> list[str]:
    names = ("orders/eu", "orders/us", "orders/eu/created", "ordersx/eu", "other/one")
    found = []
    for name in names:
        codes = {ask_as(driven, user, publish(b"x", name)),
                 ask_as(driven, user, call("qsync.publication", name, 1))}  # fmt: skip
        assert codes in ({0}, {ErrorCode.ACCESS_DENIED}), (name, codes)
        found += [name] if codes == {0} else []
    return found


@pytest.mark.parametrize(
    ("journals", "expected"),
    [
        ("orders/eu", ["orders/eu"]),
        ("orders/eu/*", ["orders/eu/created"]),
        ("orders/*", ["orders/eu", "orders/us", "orders/eu/created"]),
        ("orders*", []),
        ("*", []),
        ("", []),
    ],
)
def test_grant_of_a_function_permits_journals_by_name_or_folder(
    limited: Driven, journals: str, expected: list[str]
) -> None:
    leader = limited.leader()
    assert permitted(limited) == []
    function = build_body(296, tuple=function_row(100, publish_function(journals)))
    assert limited.ask(leader, INSERT, function).code == 0
    assert permitted(limited) == []
    grant = [1, 40, "function", 100, 4]
    assert limited.ask(leader, INSERT, build_body(312, tuple=grant)).code == 0
    assert permitted(limited) == expected
    assert limited.ask(leader, DELETE, build_body(312, key=[40, "function", 100])).code == 0
    assert permitted(limited) == []


def test_grant_by_a_role_permits_and_a_grant_without_a_name_does_not(limited: Driven) -> None:
    leader = limited.leader()

    def insert(space: int, *row: object) -> None:
        assert limited.ask(leader, INSERT, build_body(space, tuple=list(row))).code == 0

    insert(296, *function_row(100, publish_function("orders/*")))
    insert(312, 1, 40, "function", "", 4)
    body = build_body(312, tuple=[1, 40, "universe", 0, 24 | 4])
    assert limited.ask(leader, REPLACE, body).code == 0
    assert permitted(limited) == [], "all functions, and execute on the universe"
    insert(304, 41, 1, "publisher", "role", {})
    insert(312, 1, 41, "function", 100, 4)
    assert permitted(limited) == []
    insert(312, 1, 40, "role", 41, 4)
    assert permitted(limited) == ["orders/eu", "orders/us", "orders/eu/created"]
    assert limited.ask(leader, DELETE, build_body(312, key=[40, "universe", 0])).code == 0
    assert permitted(limited) == [], "a user without usage"


def test_grant_of_a_function_without_its_execution_permits_no_journal(limited: Driven) -> None:
    leader = limited.leader()
    function = build_body(296, tuple=function_row(100, publish_function("orders/*")))
    assert limited.ask(leader, INSERT, function).code == 0
    grant = build_body(312, tuple=[1, 40, "function", 100, 2**32 - 1 - 4])
    assert limited.ask(leader, INSERT, grant).code == 0
    assert permitted(limited) == []


def test_user_cannot_permit_itself_journals_by_functions_of_its_own(limited: Driven) -> None:
    """Its function is its own to grant; one of admin is not, and none can be renamed."""
    leader = limited.leader()
    rights = 24 | 32 | 128  # create and alter on the universe
    body = build_body(312, tuple=[1, 40, "universe", 0, rights])
    assert limited.ask(leader, REPLACE, body).code == 0

    def ask_app(kind: int, space: int, row: list[Any]) -> int:
        sync = len(limited.answers) + 9_000
        request = fx.Request(200, sync, kind, build_body(space, tuple=row), 0, "app", None)
        leader.step([request])
        limited.run(10_000, lambda: sync in limited.answers)
        return limited.answers[sync].code

    for space in (296, 312):
        grant = [1, 40, "space", space, 3]
        assert limited.ask(leader, INSERT, build_body(312, tuple=grant)).code == 0
    own = function_row(100, publish_function("other/*"), owner=40)
    assert ask_app(INSERT, 296, own) == 0
    assert ask_app(INSERT, 312, [40, 40, "function", 100, 4]) == 0
    assert permitted(limited) == []
    disguised = function_row(101, publish_function("orders/*"))
    assert ask_app(INSERT, 296, disguised) == 0
    for grantor in (40, 1):
        grant = [grantor, 40, "function", 101, 4]
        assert ask_app(INSERT, 312, grant) == ErrorCode.ACCESS_DENIED
    for changed in (function_row(100, publish_function("other/*")), function_row(100, "x", 40)):
        assert ask_app(REPLACE, 296, changed) != 0
    assert permitted(limited) == []


# --- removal --------------------------------------------------------------------------------------


def test_published_rows_are_deleted_and_the_sequence_survives(driven: Driven) -> None:
    leader = driven.leader()
    for content in (b"a", b"bb", b"ccc"):
        driven.ask(leader, CALL, publish(content))
    places = [[1, 100, 101], [2, 101, 103]]
    removal = call("qsync.published", JOURNAL, ID, 2, places)
    for _ in range(2):  # the second one changes nothing
        assert values(driven.ask(leader, CALL, removal)) == []
        assert publications(driven) == [(3, b"ccc")]
        assert publisher(driven) == PublisherRow(JOURNAL, ID, 3, 2, 3, places)
    driven.ask(leader, CALL, call("qsync.published", JOURNAL, ID, 3, []))
    assert values(driven.ask(leader, CALL, publish(b"d"))) == [4]


def test_removal_is_bounded_and_can_be_repeated(
    driven: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "REMOVED_MAX", 2)
    leader = driven.leader()
    for _ in range(3):
        driven.ask(leader, CALL, publish(b"x"))
    places = [[1, 0, 1], [2, 1, 2], [3, 2, 3]]
    removal = call("qsync.published", JOURNAL, ID, 3, places)
    for published in (2, 3):
        driven.ask(leader, CALL, removal)
        row = publisher(driven)
        assert (row.published, row.places) == (published, places[:published])


def test_places_of_the_last_publications_are_remembered(
    driven: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call logs and decodes all of them (T11)."""
    monkeypatch.setattr(publishing, "PLACES_MAX", 2)
    leader = driven.leader()
    for sequence in range(1, 5):
        driven.ask(leader, CALL, publish(b"x"))
        place = [sequence, sequence, sequence + 1]
        driven.ask(leader, CALL, call("qsync.published", JOURNAL, ID, sequence, [place]))
    assert publisher(driven).places == [[3, 3, 4], [4, 4, 5]]


def test_removal_beyond_the_last_sequence_is_refused(driven: Driven) -> None:
    driven.ask(driven.leader(), CALL, publish(b"x"))
    answer = driven.ask(driven.leader(), CALL, call("qsync.published", JOURNAL, ID, 2, []))
    assert answer.code == ErrorCode.ILLEGAL_PARAMS
    assert publications(driven) == [(1, b"x")]


def test_publications_of_a_deleted_journal_are_discarded(driven: Driven) -> None:
    leader = driven.leader()
    driven.ask(leader, CALL, publish(b"old"))
    discard = call("qsync.discard", JOURNAL, ID)
    assert driven.ask(leader, CALL, discard).code == ErrorCode.ILLEGAL_PARAMS
    body = build_body(JOURNAL_SPACE, index=0, key=[JOURNAL])
    assert driven.ask(leader, DELETE, body).code == 0
    assert driven.ask(leader, INSERT, journal(journal_id=9)).code == 0
    assert values(driven.ask(leader, CALL, publish(b"new"))) == [1]
    assert driven.ask(leader, CALL, discard).code == 0
    assert publications(driven) == [(1, b"new")]
    assert publisher(driven).journal_id == 9


def test_many_publications_of_a_deleted_journal_are_discarded_by_several_calls(
    driven: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "REMOVED_MAX", 2)
    leader = driven.leader()
    for number in range(5):
        assert driven.ask(leader, CALL, publish(b"%d" % number)).code == 0
    body = build_body(JOURNAL_SPACE, index=0, key=[JOURNAL])
    assert driven.ask(leader, DELETE, body).code == 0
    for left in (3, 1):
        assert driven.ask(leader, CALL, call("qsync.discard", JOURNAL, ID)).code == 0
        assert len(publications(driven)) == publisher(driven).pending_bytes == left
    assert driven.ask(leader, CALL, call("qsync.discard", JOURNAL, ID)).code == 0
    assert publications(driven) == rows(driven, PUBLISHER_SPACE) == []


# --- waiting --------------------------------------------------------------------------------------


def test_sequence_continues_after_a_failover_and_restarts(driven: Driven) -> None:
    former = driven.leader()
    assert values(driven.ask(former, CALL, publish(b"a"))) == [1]
    former.stop(power_loss=True)
    assert driven.run(10_000, lambda: driven.world.leader() not in (None, former))
    assert values(driven.ask(driven.leader(), CALL, publish(b"b"))) == [2]
    former.start()
    driven.run(3_000)
    assert publications(driven, former) == [(1, b"a"), (2, b"b")]


# --- bounds of a step -----------------------------------------------------------------------------


def test_publications_of_one_client_take_several_short_steps(driven: Driven) -> None:
    """A publication costs as much as several small requests, so a step runs fewer of them."""
    leader = driven.leader()
    assert leader.node is not None
    leader.node.context.settings = ConsensusSettings()  # with the budget of a leader in production
    syncs = [driven.next_sync() for _ in range(1_000)]
    body = publish(b"x")
    leader.step([fx.Request(100, sync, CALL, body, 0, "admin", None) for sync in syncs])
    pending = leader.node.state.pending
    assert pending is not None
    row = publishing.publisher_of(pending, JOURNAL, ID)
    assert row is not None
    assert 100 <= row.last <= 500, "publications in one step"
    assert driven.run(10_000, lambda: set(syncs) <= set(driven.answers))
    assert {driven.answers[sync].code for sync in syncs} == {0}


def test_transaction_with_too_many_publications_is_refused_at_once(
    driven: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qsync_node.transactions.streams.TRANSACTION_MAX", 3)
    leader = driven.leader()
    driven.ask(leader, BEGIN, stream=1)
    for _ in range(3):
        assert driven.ask(leader, CALL, publish(b"x"), stream=1).code == 0
    answer = driven.ask(leader, CALL, publish(b"y"), stream=1)
    assert answer.code == ErrorCode.MEMORY_ISSUE
    assert "at most 3 times; commit in parts" in answer.reason
    assert values(driven.ask(leader, COMMIT, stream=1)) == [[JOURNAL, n] for n in (1, 2, 3)]
    driven.ask(leader, BEGIN, stream=1)  # each transaction has a count of its own
    assert driven.ask(leader, CALL, publish(b"x"), stream=1).code == 0
