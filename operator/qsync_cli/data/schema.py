"""`qsync spaces`, `describe`: the schema as a user may see it."""

from typing import Annotated, Any

import typer

from qsync_cli.data.connecting import ConnectionTarget, SpaceArgument, on_cluster
from qsync_cli.data.reading import named
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.options import Output, OutputOption
from qsync_cli.output import print_document, print_table, printable, say
from qsync_client import Iterator, Space
from qsync_node.format.body import FIRST_USER_SPACE

RowsOption = Annotated[bool, typer.Option("--rows", help="Count the rows: this reads them all.")]


@on_cluster
def spaces(target: ConnectionTarget, rows: RowsOption = False, output: OutputOption = None) -> None:
    """List the spaces of users with their fields, and with --rows their number of rows."""
    with target.connect() as client:
        found = [
            (space, client.count(space.id, iterator=Iterator.ALL) if rows else None)
            for space in client.schema()
            if space.id >= FIRST_USER_SPACE and space.indexes
        ]
    if output in (Output.json, Output.yaml):
        documents = [
            document_of(space) | ({} if number is None else {"rows": number})
            for space, number in found
        ]
        print_document(documents, output)
        return
    titles = ["SPACE", "ID", *(["ROWS"] if rows else []), "FIELDS"]
    lines = [
        [space.name, str(space.id), *([str(number)] if rows else []),
         ", ".join(field.name for field in space.fields)]
        for space, number in found
    ]  # fmt: skip
    print_table(titles, lines)


@on_cluster
def describe(
    target: ConnectionTarget,
    space: SpaceArgument,
    output: OutputOption = None,
) -> None:
    """Print the fields and indexes of a space."""
    wanted = named(space)
    with target.connect() as client:
        known = list(client.schema())
    found = next((one for one in known if wanted in (one.name, one.id)), None)
    if found is None:
        raise Failure(
            FailureReason.NOT_FOUND,
            f"space {space} not found: `qsync spaces {target.cluster}` lists the visible ones",
        )
    document = document_of(found)
    if output in (Output.json, Output.yaml):
        print_document(document, output)
        return
    say(f"{printable(found.name)}, id {found.id}")
    say()
    fields = [
        [field["name"], field["type"], "yes" if field["is_nullable"] else "no"]
        for field in document["fields"]
    ]
    print_table(["FIELD", "TYPE", "NULLABLE"], fields)
    say()
    indexes = [
        [index["name"], index["type"], "yes" if index["is_unique"] else "no",
         ", ".join(index["fields"])]
        for index in document["indexes"]
    ]  # fmt: skip
    print_table(["INDEX", "TYPE", "UNIQUE", "FIELDS"], indexes)


def document_of(space: Space) -> dict[str, Any]:
    """Return a space with its fields and indexes as a JSON object."""
    names = [field.name for field in space.fields]
    return {
        "name": space.name,
        "id": space.id,
        "fields": [
            {"name": field.name, "type": field.type, "is_nullable": field.is_nullable}
            for field in space.fields
        ],
        "indexes": [
            {
                "name": index.name,
                "id": index.id,
                "type": index.type,
                "is_unique": index.is_unique,
                "fields": [
                    names[part] if part < len(names) else str(part) for part in index.fields
                ],
            }
            for index in space.indexes
        ],
    }
