"""`qsync verify`: the rows of every member against a ledger of writes.

Exit codes: 0 every line is explained, 1 a write is lost, changed or resurrected, or a member could
not be read.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qsync_cli import clusters
from qsync_cli.completion import local_clusters
from qsync_cli.data.connecting import ConnectionTarget, Endpoint, PasswordOption, UserOption
from qsync_cli.data.values import plain_of
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.options import Output, OutputOption
from qsync_cli.output import counted, print_document, print_table, progress, say
from qsync_cli.proof import ledger as ledgers
from qsync_cli.where import ContextOption, NamespaceOption
from qsync_client import Iterator

if TYPE_CHECKING:
    from qsync_cli.proof.ledger import LedgerWrite, PrimaryKey
    from qsync_client import Space, SyncClient

FileArgument = Annotated[Path, typer.Argument(help="Ledger of writes.", metavar="FILE")]
OptionalClusterArgument = Annotated[
    str | None,
    typer.Argument(
        help="Cluster, local or on Kubernetes. The default is the one that the ledger names.",
        metavar="CLUSTER",
        autocompletion=local_clusters,
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
CATCH_UP_S = 10.0
"""Time in which a member that lags must receive the rows."""
POLL_S = 0.25
KEYS_SHOWN = 20
PASSED, VIOLATED, INCOMPLETE = "Passed", "Violated", "Incomplete"
NEXT_STEPS = {
    PASSED: "the log proves the same, also for rows that were replaced since: {audit}",
    VIOLATED: "keep the ledger and the archive, and find the index at which the log lost the write:"
    " {audit}",
    INCOMPLETE: "start the members that did not answer, then verify again: {status}",
}


@dataclass
class MemberFinding:
    """The comparison with one member.

    Attributes:
        address: its address.
        rows: number of rows that the ledger's spaces have.
        problems: wrong keys by space and kind of problem.
        error: why the member could not be read, "" if it was.
    """

    address: str
    rows: int = 0
    problems: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    error: str = ""

    def lines(self) -> list[str]:
        """Return the problems as text."""
        return [
            f"{space}: {ledgers.PROBLEMS[kind]}: {counted(len(keys), 'row')}, such as {keys[0]}"
            for space, kinds in self.problems.items()
            for kind, keys in kinds.items()
        ]


def verify(
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
    operations, writes = _read(file)
    target = ConnectionTarget(
        cluster or _cluster_of(file, writes),
        user=user,
        password=password,
        namespace=namespace,
        context=context,
    )
    named = space or target_space(writes)
    by_space: dict[int | str, list[LedgerWrite]] = {}
    for one in writes:
        by_space.setdefault(_space_of(one, named), []).append(one)
    is_quiet = output in (Output.json, Output.yaml)
    with target.endpoint() as endpoint:
        addresses = endpoint.addresses
        found = []
        with progress("reading members", float(len(addresses)), is_quiet) as advance:
            for number, address in enumerate(addresses):
                advance(number, address)
                found.append(_judge(target, endpoint, address, by_space, exclusive))
    document = document_of(file, target, ledgers.outcomes_of(operations), found)
    if output in (Output.json, Output.yaml):
        print_document(document, output)
    else:
        _show(document, found)
    if document["verdict"] != PASSED:
        raise typer.Exit(1)


def _read(file: Path) -> "tuple[list[dict[str, Any]], list[LedgerWrite]]":
    try:
        operations = ledgers.read_operations(file)
        writes = [ledgers.write_of(one, number) for number, one in enumerate(operations, 1)]
    except FileNotFoundError as error:
        raise Failure(FailureReason.NOT_FOUND, f"ledger {file} not found: correct FILE") from error
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(FailureReason.FAILED, f"cannot read the ledger {file}: {error}") from error
    except ledgers.LedgerLineError as error:
        text = f"ledger {file}: {error}; docs/chaos.md describes the format"
        raise Failure(FailureReason.INVALID, text) from error
    if not writes:
        raise Failure(FailureReason.INVALID, f"ledger {file} has no complete line: write it first")
    return operations, writes


def _cluster_of(file: Path, writes: "list[LedgerWrite]") -> str:
    """Return the cluster that the ledger names, or the only local one.

    Raises:
        Failure: neither exists.
    """
    named = {one.cluster for one in writes if one.cluster}
    if len(named) == 1:
        return named.pop()
    local = [store.name for store in clusters.all_stores()]
    if not named and len(local) == 1:
        return local[0]
    what = f"names {', '.join(sorted(named))}" if named else "names no cluster"
    raise Failure(FailureReason.INVALID, f"ledger {file} {what}: add CLUSTER to the command")


def target_space(writes: "list[LedgerWrite]") -> int | str | None:
    """Return the only space that lines name, for lines without one."""
    named = {one.space for one in writes if one.space is not None}
    return named.pop() if len(named) == 1 else None


def _space_of(write: "LedgerWrite", named: int | str | None) -> int | str:
    space = write.space if write.space is not None else named
    if space is None:
        raise Failure(
            FailureReason.INVALID, f"the write of {write.key} names no space: add --space SPACE"
        )
    return int(space) if isinstance(space, str) and space.isdecimal() else space


def _judge(
    target: ConnectionTarget,
    endpoint: Endpoint,
    address: str,
    by_space: "dict[int | str, list[LedgerWrite]]",
    is_exclusive: bool,
) -> MemberFinding:
    """Compare one member. A member that lags is read again until it has caught up."""
    found = MemberFinding(address)
    try:
        with target.connect_to(replace(endpoint, addresses=[address])) as client:
            for wanted, writes in by_space.items():
                space = _find_space(client, wanted)
                read = partial(rows_of, client, space)
                rows, problems = _settled(read, writes, is_exclusive)
                found.rows += rows
                if problems:
                    found.problems[space.name] = problems
    except Failure as failure:
        if failure.reason is not FailureReason.UNREACHABLE:
            raise
        found.error = str(failure)
    return found


def _settled(
    read: "Callable[[], dict[PrimaryKey, list[Any]]]",
    writes: "list[LedgerWrite]",
    is_exclusive: bool,
) -> tuple[int, dict[str, list[str]]]:
    deadline_s = time.monotonic() + CATCH_UP_S
    while True:
        rows = read()
        problems = ledgers.compare(writes, rows, is_exclusive=is_exclusive)
        if not problems or time.monotonic() > deadline_s:
            return len(rows), problems
        time.sleep(POLL_S)  # members report no event when they have applied a row


def _find_space(client: "SyncClient", wanted: int | str) -> "Space":
    for space in client.schema():
        if wanted in (space.name, space.id):
            return space
    raise Failure(
        FailureReason.NOT_FOUND, f"space {wanted} of the ledger not found: correct --space"
    )


def rows_of(client: "SyncClient", space: "Space") -> "dict[PrimaryKey, list[Any]]":
    """Return the rows of a space on one member by their primary keys, with values that JSON has."""
    parts = space.indexes[0].fields
    found = {}
    for row in client.scan(space.id, iterator=Iterator.ALL):
        values = [plain_of(value) for value in row]
        found[ledgers.key_of([values[part] for part in parts])] = values
    return found


def document_of(
    file: Path, target: ConnectionTarget, outcomes: dict[str, int], found: list[MemberFinding]
) -> dict[str, Any]:
    """Return the verdict as a JSON object."""
    verdict = PASSED
    if any(one.error for one in found):
        verdict = INCOMPLETE
    if any(one.problems for one in found):
        verdict = VIOLATED
    return {
        "verdict": verdict,
        "cluster": target.cluster,
        "ledger": str(file),
        "outcomes": outcomes,
        "members": [
            {
                "address": one.address,
                "rows": one.rows,
                "error": one.error,
                "problems": {
                    space: {
                        kind: {"count": len(keys), "keys": keys[:KEYS_SHOWN]}
                        for kind, keys in kinds.items()
                    }
                    for space, kinds in one.problems.items()
                },
            }
            for one in found
        ],
        "nextStep": _next_step(verdict, file, target),
    }


def _next_step(verdict: str, file: Path, target: ConnectionTarget) -> str:
    audit, status = (f"qsync {verb} {target.cluster}" for verb in ("audit", "status"))
    if target.is_on_kubernetes:  # a pod cannot read the ledger
        place = f" -n {target.namespace}" if target.namespace is not None else ""
        audit, status = audit + place, status + place
    else:
        audit += f" --ledger {file}"
    return NEXT_STEPS[verdict].format(audit=audit, status=status)


def _show(document: dict[str, Any], found: list[MemberFinding]) -> None:
    outcomes = document["outcomes"]
    listed = ", ".join(f"{count:,} {name}" for name, count in sorted(outcomes.items()))
    say(f"{document['ledger']}: {listed}")
    rows = [
        [one.address, f"{one.rows:,}", one.error or "; ".join(one.lines()) or "as recorded"]
        for one in found
    ]
    print_table(["MEMBER", "ROWS", "FINDING"], rows)
    say(f"{document['cluster']}: {document['verdict']}. {sentence_of(document, found)}")
    say(f"next: {document['nextStep']}")


def sentence_of(document: dict[str, Any], found: list[MemberFinding]) -> str:
    """Return the verdict in plain English."""
    outcomes, verdict = document["outcomes"], document["verdict"]
    committed = outcomes.get(ledgers.COMMITTED, 0)
    if verdict == PASSED:
        text = f"Each of {committed:,} acknowledged writes is on {len(found)} members."
        refused = outcomes.get(ledgers.REFUSED, 0) + outcomes.get(ledgers.ROLLED_BACK, 0)
        if not refused:
            return text
        return f"{text} None of {refused:,} refused or rolled back ones took effect."
    if verdict == VIOLATED:
        wrong = sum(bool(one.problems) for one in found)
        return f"{wrong} of {len(found)} members contradict the ledger."
    silent = sum(bool(one.error) for one in found)
    text = f"{silent} of {len(found)} members could not be read"
    return f"{text}." if silent == len(found) else f"{text}; the others agree with the ledger."
