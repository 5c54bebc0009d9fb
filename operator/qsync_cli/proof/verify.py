"""`qsync verify`: the rows of every member against a ledger of writes.

Exit codes: 0 every line is explained, 1 a write is lost, changed or resurrected, or a member could
not be read.
"""

import json
import sqlite3
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from qsync_cli import clusters
from qsync_cli.completion import cluster_names
from qsync_cli.data.connecting import ConnectionTarget, Endpoint, PasswordOption, UserOption
from qsync_cli.data.extensions import value_of_object
from qsync_cli.data.fields import is_of_type
from qsync_cli.data.values import plain_of
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.options import Output, OutputOption
from qsync_cli.output import GAP, counted, print_document, print_table, progress, say, shortened
from qsync_cli.proof import ledger as ledgers
from qsync_cli.where import ContextOption, NamespaceOption
from qsync_client import Iterator as IndexIterator
from qsync_client import ledger

if TYPE_CHECKING:
    from qsync_cli.proof.ledger import LedgerFile, PrimaryKey, WrongKeys
    from qsync_client import Space, SyncClient

FileArgument = Annotated[Path, typer.Argument(help="Ledger of writes.", metavar="FILE")]
OptionalClusterArgument = Annotated[
    str | None,
    typer.Argument(
        help="Cluster, local or on Kubernetes. The default is the one that the ledger names.",
        metavar="CLUSTER",
        autocompletion=cluster_names,
    ),
]
SpaceOption = Annotated[
    str | None,
    typer.Option("--space", help="Space of lines that name none.", show_default=False),
]
ExclusiveOption = Annotated[
    bool,
    typer.Option("--exclusive", help="Only this workload writes the spaces: refuse other rows."),
]
RowsT = TypeVar("RowsT")
CATCH_UP_S = 10.0
"""Time from the first read on, after which each member must have the rows."""
POLL_S = 0.25
WIDTH = 80
FINDING_WIDTH_MIN = 30
KEY_WIDTH = 32
PASSED, VIOLATED, INCOMPLETE = "Passed", "Violated", "Incomplete"


@dataclass
class MemberFinding:
    """The comparison with one member.

    Attributes:
        member: its name, or its address.
        address: its address.
        rows: number of rows that the ledger's spaces have.
        problems: wrong keys by space and kind of problem.
        error: why the member could not be read, "" if it was.
    """

    member: str
    address: str = ""
    rows: int = 0
    problems: "dict[str, dict[str, WrongKeys]]" = field(default_factory=dict)
    error: str = ""

    def texts(self) -> list[str]:
        """Return the findings as text."""
        if self.error:
            return [self.error]
        return [
            f"{shortened(space, KEY_WIDTH)}: {ledgers.PROBLEMS[kind]}:"
            f" {counted(wrong.count, 'row')}, such as {shortened(wrong.keys[0], KEY_WIDTH)}"
            for space, kinds in self.problems.items()
            for kind, wrong in kinds.items()
        ] or ["as recorded"]


def verify(  # as many as there are options
    file: FileArgument,
    cluster: OptionalClusterArgument = None,
    space: SpaceOption = None,
    exclusive: ExclusiveOption = False,
    user: UserOption = None,
    password: PasswordOption = None,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    output: OutputOption = None,
) -> None:
    """Compare a ledger of writes with the rows of every member."""
    with _disk_failures(), _read(file) as writes:
        target = ConnectionTarget(
            cluster or _cluster_of(file, writes),
            user=user,
            password=password,
            namespace=namespace,
            context=context,
        )
        writes.keep(target.cluster)
        by_space = _by_space(writes, space)
        is_quiet = output in (Output.json, Output.yaml)
        with target.endpoint() as endpoint:
            found = []
            members = endpoint.members()
            catch_up = CatchUp()
            with progress("reading members", float(len(members)), is_quiet) as advance:
                for number, (name, address) in enumerate(members):
                    advance(number, name)
                    one = replace(endpoint, addresses=[address], names=[])
                    finding = MemberFinding(name, address)
                    _judge(target, one, writes, by_space, exclusive, catch_up, finding)
                    found.append(finding)
            has_archive = endpoint.has_archive
        document = document_of(file, target, writes.outcomes, found, has_archive=has_archive)
    if output in (Output.json, Output.yaml):
        print_document(document, output)
    else:
        _show(document, found)
    if document["verdict"] != PASSED:
        raise typer.Exit(1)


@contextmanager
def _disk_failures() -> Iterator[None]:
    """Convert errors of the temporary file. Raises Failure."""
    try:
        yield
    except sqlite3.Error as error:
        raise Failure(
            FailureReason.FAILED,
            f"cannot sort the ledger and the rows in a temporary file: {error}; set TMPDIR to a"
            " folder with more free space",
        ) from error


def _read(file: Path) -> "LedgerFile":
    try:
        writes = ledgers.LedgerFile.read(file)
    except FileNotFoundError as error:
        raise Failure(FailureReason.NOT_FOUND, f"ledger {file} not found: correct FILE") from error
    except OSError as error:
        cause = error.strerror or str(error)
        text = f"cannot read the ledger {file}: {cause}; correct FILE"
        raise Failure(FailureReason.FAILED, text) from error
    except ledger.LedgerLineError as error:
        text = f"ledger {file}: {error}; docs/chaos.md describes the format"
        raise Failure(FailureReason.INVALID, text) from error
    if not writes.outcomes:
        raise Failure(FailureReason.INVALID, f"ledger {file} has no complete line: write it first")
    return writes


def _cluster_of(file: Path, writes: "LedgerFile") -> str:
    """Return the cluster that the ledger names, or the only local one.

    Raises:
        Failure: neither exists.
    """
    named = writes.clusters
    if len(named) == 1:
        return next(iter(named))
    local = [store.name for store in clusters.all_stores()]
    if not named and len(local) == 1:
        return local[0]
    what = f"names {', '.join(sorted(named))}" if named else "names no cluster"
    raise Failure(FailureReason.INVALID, f"ledger {file} {what}: add CLUSTER to the command")


def _by_space(writes: "LedgerFile", given: str | None) -> dict[int | str, list[int | str | None]]:
    """Return the names by which lines mean a space, by one of them.

    Lines without a space mean `given`, or the only space that other lines name.

    Raises:
        Failure: the space of a line is not known.
    """
    named = writes.spaces()
    known = [one for one in named if one is not None]
    by_space: dict[int | str, list[int | str | None]] = {one: [one] for one in known}
    if None in named:
        default = _id_or_name(given) if given is not None else None
        if default is None and len(known) == 1:
            default = known[0]
        if default is None:
            line = writes.line_without_space()
            text = f"line {line} names no space: add --space SPACE"
            raise Failure(FailureReason.INVALID, f"cannot verify the ledger: {text}")
        by_space.setdefault(default, []).append(None)
    return by_space


def _id_or_name(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def _judge(
    target: ConnectionTarget,
    endpoint: Endpoint,
    writes: "LedgerFile",
    by_space: dict[int | str, list[int | str | None]],
    is_exclusive: bool,
    catch_up: "CatchUp",
    found: MemberFinding,
) -> None:
    """Compare one member. A member that lags is read again until it has caught up."""
    try:
        with target.connect_to(endpoint) as client:
            for space, names in _resolved(client, by_space):
                read = partial(rows_of, client, space)
                compare = partial(writes.compare, names, is_exclusive=is_exclusive)
                rows, problems = catch_up.settled(read, compare)
                refuse_impossible_keys(space, problems)
                found.rows += rows
                if problems:
                    found.problems[space.name] = problems
    except Failure as failure:
        if failure.reason is not FailureReason.UNREACHABLE:
            raise
        found.error = str(failure)


class CatchUp:
    """The time that members which lag have to receive the rows; all have it together."""

    def __init__(
        self,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Begin now.

        Args:
            now_s: monotonic time in seconds.
            sleep: waits for a number of seconds.
        """
        self._now_s = now_s
        self._sleep = sleep
        self._deadline_s = now_s() + CATCH_UP_S

    def settled(
        self,
        read: Callable[[], RowsT],
        compare: "Callable[[RowsT], tuple[int, dict[str, WrongKeys]]]",
    ) -> "tuple[int, dict[str, WrongKeys]]":
        """Return the number of rows of a member, and its problems.

        Problems count only if the read began after the end of the time. Others are read again.

        Args:
            read: reads all rows of the member.
            compare: compares them with the ledger.
        """
        while True:
            is_last = self._now_s() >= self._deadline_s
            rows, problems = compare(read())
            if not problems or is_last:
                return rows, problems
            # Members report no event when they have applied a row.
            self._sleep(min(POLL_S, max(0.0, self._deadline_s - self._now_s())))


def _resolved(
    client: "SyncClient", by_space: dict[int | str, list[int | str | None]]
) -> "list[tuple[Space, list[int | str | None]]]":
    """Return the spaces, each with all names by which lines mean it.

    Raises:
        Failure: a space does not exist.
    """
    found: dict[int, tuple[Space, list[int | str | None]]] = {}
    for wanted, names in by_space.items():
        space = _find_space(client, wanted)
        found.setdefault(space.id, (space, []))[1].extend(names)
    return list(found.values())


def _find_space(client: "SyncClient", wanted: int | str) -> "Space":
    for space in client.schema():
        if wanted in (space.name, space.id):
            return space
    raise Failure(
        FailureReason.NOT_FOUND, f"space {wanted} of the ledger not found: correct --space"
    )


def refuse_impossible_keys(space: "Space", problems: "dict[str, WrongKeys]") -> None:
    """Refuse a ledger whose key no row of the space can have: such a row is not lost.

    Raises:
        Failure: a key has another type, or another number of parts.
    """
    lost = problems.get(ledgers.LOST)
    types = space.indexes[0].types
    for key, line in zip(lost.keys, lost.lines, strict=True) if lost is not None else ():
        parts = json.loads(key, object_hook=value_of_object)
        problem = ""
        if len(parts) != len(types):
            problem = f"with {counted(len(parts), 'part')}, and the index has {len(types)}"
        for part, kind in zip(parts, types, strict=False):
            if not is_of_type(kind, part):
                problem = problem or f"that is no {kind}"
        if problem:
            text = f"line {line} has the key {shortened(key, KEY_WIDTH)} {problem}"
            raise Failure(
                FailureReason.INVALID,
                f"cannot compare the ledger with the space {space.name}: {text}; correct `id` or"
                " `key`",
            )


def rows_of(client: "SyncClient", space: "Space") -> "Iterator[tuple[PrimaryKey, list[Any]]]":
    """Yield the rows of a space on one member by their primary keys, with values that JSON has."""
    parts = space.indexes[0].fields
    for row in client.scan(space.id, iterator=IndexIterator.ALL):
        values = [plain_of(value) for value in row]
        yield ledgers.key_of([ledger.normal_part(values[part]) for part in parts]), values


def document_of(
    file: Path,
    target: ConnectionTarget,
    outcomes: dict[str, int],
    found: list[MemberFinding],
    *,
    has_archive: bool,
) -> dict[str, Any]:
    """Return the verdict as a JSON object."""
    verdict = PASSED
    if any(one.error for one in found) or not outcomes.get(ledger.COMMITTED):
        verdict = INCOMPLETE
    if any(one.problems for one in found):
        verdict = VIOLATED
    document = {
        "verdict": verdict,
        "cluster": target.cluster,
        "ledger": str(file),
        "outcomes": outcomes,
        "members": [
            {
                "name": one.member,
                "address": one.address,
                "rows": one.rows,
                "error": one.error,
                "problems": {
                    space: {
                        kind: {"count": wrong.count, "keys": wrong.keys}
                        for kind, wrong in kinds.items()
                    }
                    for space, kinds in one.problems.items()
                },
            }
            for one in found
        ],
    }
    return {**document, "nextStep": _next_step(document, target, has_archive)}


def _next_step(document: dict[str, Any], target: ConnectionTarget, has_archive: bool) -> str:
    audit, status = (f"qsync {verb} {target.cluster}" for verb in ("audit", "status"))
    if target.is_on_kubernetes:  # a pod cannot read the ledger
        place = f" -n {target.namespace}" if target.namespace is not None else ""
        audit, status = audit + place, status + place
    else:
        audit += f" --ledger {document['ledger']}"
    verdict = document["verdict"]
    if verdict == INCOMPLETE:
        if any(one["error"] for one in document["members"]):
            return f"start the members that did not answer, then verify again: {status}"
        return "record acknowledged writes in the ledger, then verify again"
    if target.is_address:
        return "verify all members by the name of the cluster"
    if verdict == PASSED:
        if has_archive:
            return f"the log proves the same, also for rows that were replaced since: {audit}"
        return (
            f"{target.cluster} has no archive: with spec.archive, an audit proves the same, also"
            " for rows that were replaced since"
        )
    if has_archive:
        return (
            "keep the ledger and the archive, and find the index at which the log lost the write:"
            f" {audit}"
        )
    return (
        f"keep the ledger and the data directories: {target.cluster} has no archive that an audit"
        " could read"
    )


def _show(document: dict[str, Any], found: list[MemberFinding]) -> None:
    outcomes = document["outcomes"]
    listed = ", ".join(f"{count:,} {name}" for name, count in sorted(outcomes.items()))
    say(f"{document['ledger']}: {listed}")
    print_table(["MEMBER", "ROWS", "FINDING"], table_of(found))
    say(f"{document['cluster']}: {document['verdict']}. {sentence_of(document, found)}")
    say(f"next: {document['nextStep']}")


def table_of(found: list[MemberFinding]) -> list[list[str]]:
    """Return the lines of a table that fits a terminal of 80 columns."""
    rows = {one.member: f"{one.rows:,}" for one in found}
    left = max(len("MEMBER"), *map(len, rows)) + max(len("ROWS"), *map(len, rows.values()))
    width = max(WIDTH - left - 2 * GAP, FINDING_WIDTH_MIN)
    lines = []
    for one in found:
        cells = [line for text in one.texts() for line in textwrap.wrap(text, width)]
        lines += [
            [one.member, rows[one.member], cell] if not number else ["", "", cell]
            for number, cell in enumerate(cells)
        ]
    return lines


def sentence_of(document: dict[str, Any], found: list[MemberFinding]) -> str:
    """Return the verdict in plain English."""
    outcomes, verdict = document["outcomes"], document["verdict"]
    committed = outcomes.get(ledger.COMMITTED, 0)
    if verdict == PASSED:
        text = f"Each of {committed:,} acknowledged writes is on {len(found)} members."
        refused = outcomes.get(ledger.REFUSED, 0) + outcomes.get(ledger.ROLLED_BACK, 0)
        if not refused:
            return text
        return f"{text} None of {refused:,} refused or rolled back ones took effect."
    if verdict == VIOLATED:
        wrong = sum(bool(one.problems) for one in found)
        return f"{wrong} of {len(found)} members contradict the ledger."
    silent = sum(bool(one.error) for one in found)
    if not silent:
        return (
            "The ledger records no acknowledged write, so nothing is proved about acknowledged"
            " writes."
        )
    text = f"{silent} of {len(found)} members could not be read"
    return f"{text}." if silent == len(found) else f"{text}; the others agree with the ledger."
