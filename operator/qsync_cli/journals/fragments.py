"""`qsync journals fragments`."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from qsync_broker import codecs
from qsync_cli.options import LocalOption, Output, OutputOption
from qsync_cli.output import print_document, print_table

if TYPE_CHECKING:
    from qsync_broker.client import JournalClient
    from qsync_broker.index import RemoteFragment
from qsync_cli.journals.access import (
    BrokerOption,
    CaOption,
    JournalArgument,
    TokenOption,
    ask_broker,
)


def fragments(
    journal: JournalArgument,
    broker: BrokerOption = None,
    local: LocalOption = None,
    token: TokenOption = "",
    ca: CaOption = None,
    output: OutputOption = None,
) -> None:
    """List the fragments of a journal: offset, length, persistence, SHA-1, codec."""

    async def work(client: "JournalClient") -> "list[RemoteFragment]":
        return await client.fragments(journal)

    found: list[RemoteFragment] = ask_broker(broker, local, token, ca, work)
    described = [
        {
            "begin": one.begin,
            "length": one.end - one.begin,
            "persisted": datetime.fromtimestamp(one.mod_time, UTC).isoformat()
            if one.mod_time
            else "",
            "sha1": one.sum.hex(),
            "codec": codecs.Codec(one.codec).name,
            "store": one.store,
            "path": one.path,
        }
        for one in found
    ]
    if output in (Output.json, Output.yaml):
        print_document(described, output)
        return
    rows = [
        [
            str(one["begin"]),
            str(one["length"]),
            str(one["persisted"]) or "-",
            str(one["sha1"])[:12],
            str(one["codec"]),
        ]
        for one in described
    ]
    print_table(["OFFSET", "LENGTH", "PERSISTED", "SHA-1", "CODEC"], rows)
