"""Decisions of the client that need no connection: attempts, outcomes, keys, names."""

import ast
import sys
from pathlib import Path

import msgpack
import pytest

import qsync_client
from qsync_client import (
    AccessDenied,
    Committed,
    ErrorCode,
    Iterator,
    Outcome,
    Refused,
    RolledBack,
    Row,
    SchemaError,
    Unknown,
)
from qsync_client.errors import hopeless_error
from qsync_client.keys import MARK_AGE_S, Keys
from qsync_client.outcomes import outcome_of
from qsync_client.protocol.constants import Iterator as IteratorType
from qsync_client.protocol.constants import Key
from qsync_client.requests import SpaceTarget, iterator_of, key_of
from qsync_client.retry import Retry, RetryStep
from qsync_client.schema import decode_schema

NOT_LEADER = Refused(int(ErrorCode.NOT_LEADER), "not me")
FULL = Refused(int(ErrorCode.DISK_FULL), "full")
DUPLICATE = Refused(int(ErrorCode.TUPLE_FOUND), "duplicate")
OLD_SCHEMA = Refused(int(ErrorCode.WRONG_SCHEMA_VERSION), "changed")
DENIED = Refused(int(ErrorCode.ACCESS_DENIED), "denied")
REMOVED = Refused(int(ErrorCode.UNKNOWN_REPLICA), "removed")
LATE = Refused(int(ErrorCode.TIMEOUT), "late")
INVALID = Refused(int(ErrorCode.ILLEGAL_PARAMS), "invalid")
LOST = Unknown("the connection broke")
EXPIRED = Unknown("older than the window", int(ErrorCode.KEY_EXPIRED))
DONE = Committed([])
ROLLED_BACK = RolledBack("no quorum")


@pytest.mark.parametrize(
    ("outcomes", "step", "outcome"),
    [
        ([DONE], RetryStep.RETURN, DONE),
        ([ROLLED_BACK], RetryStep.RETURN, ROLLED_BACK),
        ([NOT_LEADER], RetryStep.RETRY, NOT_LEADER),
        ([NOT_LEADER, DONE], RetryStep.RETURN, DONE),
        ([FULL], RetryStep.RETURN, FULL),
        ([DENIED], RetryStep.RAISE, DENIED),
        ([OLD_SCHEMA], RetryStep.READ_SCHEMA, OLD_SCHEMA),
        ([LOST], RetryStep.RETRY, LOST),
        ([LOST, DONE], RetryStep.RETURN, DONE),
        ([LOST, DUPLICATE], RetryStep.RETURN, DUPLICATE),
        ([LOST, EXPIRED], RetryStep.RETURN, EXPIRED),
        # A key that expired before its first attempt never ran, so the client replaces it.
        ([EXPIRED], RetryStep.RENEW_KEY, EXPIRED),
        # A refusal without execution leaves the outcome of the earlier attempt unknown.
        ([LOST, NOT_LEADER], RetryStep.RETRY, LOST),
        ([LOST, FULL], RetryStep.RETRY, LOST),
        ([LOST, FULL, DONE], RetryStep.RETURN, DONE),
        ([LOST, DENIED], RetryStep.RETURN, LOST),
        ([LOST, REMOVED], RetryStep.RETRY, LOST),
        ([LOST, LATE], RetryStep.RETRY, LOST),
        ([LOST, INVALID], RetryStep.RETURN, LOST),
        # The first attempt may still be under way, and its key is forgotten.
        ([LOST, ROLLED_BACK], RetryStep.RETRY, LOST),
        ([LOST, ROLLED_BACK, DONE], RetryStep.RETURN, DONE),
    ],
)
def test_an_outcome_covers_all_attempts(
    outcomes: list[Outcome], step: RetryStep, outcome: Outcome
) -> None:
    retry = Retry()
    assert [retry.after(one) for one in outcomes][-1] is step
    assert retry.outcome == outcome


def test_read_without_an_answer_may_look_its_names_up_again() -> None:
    retry = Retry(is_keyed=False)
    steps = [retry.after(outcome) for outcome in (LOST, OLD_SCHEMA, LOST, DENIED)]
    assert steps == [RetryStep.RETRY, RetryStep.READ_SCHEMA, RetryStep.RETRY, RetryStep.RAISE]


def test_key_of_the_caller_is_never_replaced() -> None:
    retry = Retry(is_key_given=True)
    assert retry.after(EXPIRED) is RetryStep.RETURN
    assert retry.outcome == EXPIRED


def test_refusal_of_the_first_use_of_a_key_is_known() -> None:
    retry = Retry(is_key_given=True, is_first=True)
    refused = Refused(int(ErrorCode.MEMORY_ISSUE), "no room")
    assert retry.after(refused) is RetryStep.RETURN
    assert retry.outcome == refused
    again = Retry(is_key_given=True)
    assert again.after(refused) is RetryStep.RETRY
    assert isinstance(again.outcome, Unknown)


def test_rollback_of_a_further_attempt_leaves_the_first_one_unknown() -> None:
    retry = Retry(is_key_given=True)
    assert retry.after(ROLLED_BACK) is RetryStep.RETRY
    assert isinstance(retry.outcome, Unknown)
    assert retry.outcome.reason.startswith("no quorum: this attempt has no effect")


@pytest.mark.parametrize(
    ("code", "kind"), [(42, AccessDenied), (45, AccessDenied), (47, AccessDenied),
                       (35, SchemaError), (36, SchemaError)],
)  # fmt: skip
def test_refusals_that_no_retry_heals_become_exceptions(code: int, kind: type[Exception]) -> None:
    error = hopeless_error(Refused(code, "reason"))
    assert isinstance(error, kind)
    assert error.code == code
    assert hopeless_error(DUPLICATE) is None
    assert hopeless_error(LOST) is None


def described(outcome: Outcome) -> str:
    match outcome:
        case Committed(rows, at=index):
            return f"committed {rows} at {index}"
        case RolledBack(reason):
            return f"rolled back: {reason}"
        case Unknown(reason):
            return f"unknown: {reason}"
        case Refused(code, reason):
            return f"refused: {code} {reason}"


@pytest.mark.parametrize(
    ("kind", "body", "text"),
    [
        (0, {Key.DATA: [[1]], Key.INDEX: 43}, "committed [[1]] at 43"),
        (0x8000 + 216, {Key.ERROR_24: "no quorum"}, "rolled back: no quorum"),
        (0x8000 + 295, {Key.ERROR_24: "leadership lost"}, "unknown: leadership lost"),
        (0x8000 + 3, {Key.ERROR_24: "duplicate"}, "refused: 3 duplicate"),
    ],
)
def test_answers_match_the_documented_patterns(kind: int, body: object, text: str) -> None:
    assert described(outcome_of(kind, msgpack.packb(body))) == text
    assert "Committed(rows, at=index)" in (sys.modules["qsync_client.outcomes"].__doc__ or "")


def test_mark_is_renewed_by_answers_and_stale_after_its_age() -> None:
    keys = Keys("me")
    assert keys.is_stale(0.0)
    keys.renew(10, 0.0)
    assert not keys.is_stale(MARK_AGE_S)
    assert keys.is_stale(MARK_AGE_S + 0.1)
    keys.renew(5, 3.0)
    assert keys.is_stale(3.5), "an older index is no newer mark"
    keys.renew(10, 3.0)
    assert not keys.is_stale(3.5), "the log did not grow"
    assert keys.next() == (keys.client, 1, 10)
    assert keys.next() == (keys.client, 2, 10), "an older index does not lower the mark"
    keys.expire()
    assert keys.is_stale(3.5)


SCHEMA = decode_schema(
    9,
    [
        [512, 1, "accounts", "memtx", 0, {}, [
            {"name": "id", "type": "unsigned"},
            {"name": "owner", "type": "string", "is_nullable": True},
            {"name": "balance", "type": "integer"},
        ]],
    ],
    [
        [512, 0, "primary", "tree", {"unique": True}, [[0, "unsigned"]]],
        [512, 1, "by_owner", "tree", {"unique": False}, [{"field": 1, "type": "string"}]],
    ],
)  # fmt: skip


def test_names_become_ids_and_positions() -> None:
    to = SpaceTarget("accounts", SCHEMA)
    request = to.select("ann", "by_owner", "ge", 5)
    assert msgpack.unpackb(request.body, strict_map_key=False) == {
        Key.SPACE_ID: 512,
        Key.INDEX_ID: 1,
        Key.LIMIT: 5,
        Key.OFFSET: 0,
        Key.ITERATOR: IteratorType.GE,
        Key.KEY: ["ann"],
    }
    assert request.schema_version == 9
    written = to.insert({"balance": 5, "id": 1})
    assert msgpack.unpackb(written.body, strict_map_key=False)[Key.TUPLE] == [1, None, 5]
    assert SpaceTarget(512, None).insert([1]).schema_version == 0, "ids need no version"


@pytest.mark.parametrize(
    "attempt",
    [
        lambda: SpaceTarget("missing", SCHEMA),
        lambda: SpaceTarget("accounts", SCHEMA).select((), "missing", 0, 1),
        lambda: SpaceTarget("accounts", SCHEMA).insert({"missing": 1}),
        lambda: SpaceTarget(512, None).insert({"id": 1}),
        lambda: SpaceTarget(512, None).select((), "primary", 0, 1),
        lambda: Row([1]).as_dict(),
    ],
)
def test_unknown_name_is_a_schema_error(attempt: object) -> None:
    assert callable(attempt)
    with pytest.raises(SchemaError):
        attempt()


def test_row_is_a_list_with_names() -> None:
    space = SCHEMA.space("accounts")
    assert Row([1, "ann", 5], space) == [1, "ann", 5]
    assert Row([1, "ann", 5], space).as_dict() == {"id": 1, "owner": "ann", "balance": 5}
    assert Row([1], space).as_dict() == {"id": 1, "owner": None, "balance": None}
    assert Row([1, "a", 2, "x"], space).as_dict()["3"] == "x"


def test_keys_and_iterators_have_short_forms() -> None:
    assert [key_of(one) for one in (1, "a", [1, 2], (), None)] == [[1], ["a"], [1, 2], [], []]
    assert [iterator_of(one) for one in ("GT", Iterator.LE, 2)] == [6, 4, 2]
    with pytest.raises(ValueError, match="unknown iterator"):
        iterator_of("after")


def test_package_imports_msgpack_and_the_standard_library_only() -> None:
    folder = Path(qsync_client.__file__).parent
    allowed = {*sys.stdlib_module_names, "msgpack", "qsync_client"}
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, path
                names = [node.module or ""]
            assert {name.split(".")[0] for name in names} <= allowed, path


def test_public_names_load_on_first_use() -> None:
    assert all(getattr(qsync_client, name) is not None for name in qsync_client.__all__)
    with pytest.raises(AttributeError):
        _ = qsync_client.missing
