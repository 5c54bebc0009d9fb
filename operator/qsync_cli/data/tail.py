"""`qsync tail`: the changes of a cluster as JSON lines.

Each line carries the index of its row in the log. The index plus one is the `--from` that continues
after this line exactly, also at another member and after a failover. A member sends confirmed rows
only, so no line is ever withdrawn.
"""

import sys
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from qsync_cli.data import following
from qsync_cli.data.connecting import ConnectionTarget, Endpoint, on_cluster
from qsync_cli.data.reading import named
from qsync_cli.data.values import json_of
from qsync_cli.failure import Failure, FailureReason
from qsync_client import AccessDenied, Committed, ErrorCode, Row, Schema, Space, SyncClient
from qsync_client.feed import Changed
from qsync_client.protocol.spaces import SystemSpace
from qsync_client.schema import VSPACE
from qsync_node.format.body import FIRST_USER_SPACE

SpacesArgument = Annotated[
    list[str] | None,
    typer.Argument(help="Names or ids of spaces. The default is all.", metavar="SPACE..."),
]
FromOption = Annotated[
    int, typer.Option("--from", help="Index of the first change. 1 is the first of the log.", min=1)
]
ToOption = Annotated[
    int | None,
    typer.Option("--to", help="Index of the last change. The default is the newest confirmed one.",
                 min=1, show_default=False),
]  # fmt: skip
FollowOption = Annotated[
    bool, typer.Option("-f", "--follow", help="Wait for new changes until interrupted.")
]


@on_cluster
def tail(
    target: ConnectionTarget,
    space: SpacesArgument = None,
    start: FromOption = 1,
    end: ToOption = None,
    follow: FollowOption = False,
) -> None:
    """Print confirmed changes as JSON lines, from an index of the log."""
    if follow and end is not None:
        raise typer.BadParameter("--follow and --to exclude each other: specify only one")
    with target.endpoint() as endpoint, target.connect_to(endpoint) as client:
        newest = confirmed_index(client)
        if start > newest + 1:
            raise Failure(
                FailureReason.INVALID,
                f"the log of {target.cluster} ends at index {newest}: --from can be at most "
                f"{newest + 1}",
            )
        names = Names(client)
        wanted = [named(one) for one in space or ()]
        position = following.Position(start - 1)
        last = None if follow else newest if end is None else end
        _print(endpoint, position, names, wanted, last)


def confirmed_index(client: SyncClient) -> int:
    """Return an index that covers every write that was answered before this call.

    The linearizable read makes the leader prove that it leads; its confirmed index then covers all
    earlier answers.
    """
    read = client.select(VSPACE, limit=1, linearizable=True)
    mark = client.call("qsync.mark")
    for outcome in (read, mark):
        if not isinstance(outcome, Committed):
            raise Failure(
                FailureReason.REFUSED, f"the end of the log is unknown: {outcome.reason}; retry"
            )
    return int(mark.tuples[0])  # type: ignore[union-attr]  # both are Committed here


class Names:
    """Names of spaces and fields as they are now; the log contains ids only."""

    def __init__(self, client: SyncClient) -> None:
        self._client = client
        self._by_id: dict[int, Space] = {}
        self._absent: set[int] = set()  # ids of dropped spaces
        self._is_stale = False
        self._read()

    def ids_of(self, wanted: Iterable[int | str]) -> tuple[int, ...]:
        """Return the ids of spaces.

        Raises:
            SchemaError: there is no such space.
        """
        schema = Schema(0, self._by_id.values())
        return tuple(one if isinstance(one, int) else schema.space(one).id for one in wanted)

    def visible(self) -> tuple[int, ...]:
        """Return the ids of the spaces of users that the user of this command may see."""
        return tuple(one for one in self._by_id if one >= FIRST_USER_SPACE)

    def space(self, number: int) -> Space | None:
        """Return a space, or None if it no longer exists."""
        if self._is_stale or (number not in self._by_id and number not in self._absent):
            self._read()
            if number not in self._by_id:
                self._absent.add(number)
        return self._by_id.get(number)

    def expire(self) -> None:
        """Read the schema again for the next row: a space was created, changed or dropped."""
        self._is_stale = True
        self._absent.clear()

    def _read(self) -> None:
        self._by_id = {space.id: space for space in self._client.schema()}
        self._is_stale = False


def lines_of(
    changes: Iterable[Changed], names: Names, wanted: Collection[int]
) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of changes with the present names.

    Args:
        changes: changes in their order. A member adds those of system spaces.
        names: the names; they expire with each change of a space.
        wanted: ids of the system spaces whose changes are yielded, too.
    """
    for change in changes:
        if change.space == SystemSpace.SPACE:
            names.expire()
        if change.space >= FIRST_USER_SPACE or change.space in wanted:
            yield line_of(change, names.space(change.space))


def line_of(change: Changed, space: Space | None) -> dict[str, Any]:
    """Return the JSON object of a change; without a space, fields have no names."""
    line: dict[str, Any] = {
        "index": change.index,
        "transaction": change.transaction,
        "time": datetime.fromtimestamp(change.time_s, UTC).isoformat(timespec="milliseconds"),
        "space": change.space if space is None else space.name,
        "kind": change.kind.name.lower(),
    }
    if change.key is not None:
        parts = [] if space is None or not space.indexes else space.indexes[0].fields
        names = [_name(part, space) for part in parts]
        is_named = len(names) == len(change.key)
        line["key"] = dict(zip(names, change.key, strict=True)) if is_named else change.key
    if change.row is not None:
        line["row"] = change.row if space is None else Row(change.row, space).as_dict()
    if change.operations is not None:
        line["operations"] = [
            [operator, _name(field, space), *arguments]
            for operator, field, *arguments in change.operations
        ]
    return line


def _name(field: object, space: Space | None) -> Any:
    if isinstance(field, int) and space is not None and 0 <= field < len(space.fields):
        return space.fields[field].name
    return field


def _print(
    endpoint: Endpoint,
    position: following.Position,
    names: Names,
    wanted: list[int | str],
    end: int | None,
) -> None:
    """Print the changes, and where to continue."""
    printed = 0
    ids = names.ids_of(wanted)  # a space may be renamed or dropped meanwhile
    try:
        for changes in _followed(endpoint, position, names, ids, end):
            for line in lines_of(changes, names, ids):
                sys.stdout.write(json_of(line) + "\n")
                printed = line["index"]
            if changes:
                sys.stdout.flush()
    except KeyboardInterrupt:
        pass
    typer.echo(f"next: --from {max(position.index, printed) + 1}", err=True)


def _followed(
    endpoint: Endpoint,
    position: following.Position,
    names: Names,
    wanted: tuple[int, ...],
    end: int | None,
) -> Iterable[list[Changed]]:
    """Yield the changes of the wanted spaces, or of all that the user may read."""

    def report(text: str) -> None:
        typer.echo(f"qsync: {text}", err=True)

    try:
        yield from following.follow(endpoint, position, wanted, end, report)
    except AccessDenied as error:
        if wanted or error.code != ErrorCode.ACCESS_DENIED:
            raise
        yield from following.follow(endpoint, position, names.visible(), end, report)
