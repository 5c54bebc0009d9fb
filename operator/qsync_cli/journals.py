"""`qsync journals`: the journals of a cluster, through any of its brokers."""

import asyncio
import difflib
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from qsync_broker import client as broker_client
from qsync_broker import codecs, duration, labels, requests, status
from qsync_broker import ledger as broker_ledger
from qsync_broker import spec as broker_spec
from qsync_broker import stores as broker_stores
from qsync_cli import brokers, clusters
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.options import LocalOption, Output, OutputOption
from qsync_cli.output import done, print_document, print_table, warn

if TYPE_CHECKING:
    from qsync_broker.client import JournalClient, Listed
    from qsync_broker.index import RemoteFragment
    from qsync_broker.spec import JournalSpec
    from qsync_cli.brokers import BrokerAccess

CHUNK = 1 << 20
SUSPENSIONS = ("", "partial", "full")

BrokerOption = Annotated[
    str | None,
    typer.Option(
        "--broker", envvar="BROKER_ADDRESS", help="URL of any broker.", metavar="URL",
        show_default=False,
    ),
]  # fmt: skip
TokenOption = Annotated[
    str, typer.Option("--token", envvar="BROKER_AUTH_TOKEN", help="Token for the brokers.",
                      metavar="JWT", show_default=False),
]  # fmt: skip
CaOption = Annotated[
    Path | None,
    typer.Option(
        "--ca", envvar="BROKER_TRUSTED_CA_FILE", help="File with the authorities of the brokers.",
        metavar="FILE", show_default=False,
    ),
]  # fmt: skip
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Report the fragments, and change nothing.")
]
JournalArgument = Annotated[str, typer.Argument(help="Name of the journal.", metavar="JOURNAL")]
SelectorOption = Annotated[
    str,
    typer.Option(
        "--selector", "-l", help="Labels of the wanted journals.", metavar="SELECTOR",
        show_default=False,
    ),
]  # fmt: skip


def ask_broker(
    broker: str | None,
    local: str | None,
    token: str,
    ca: Path | None,
    work: "Callable[[JournalClient], Coroutine[Any, Any, Any]]",
    ledger: Path | None = None,
) -> Any:
    """Run requests at a broker.

    Raises:
        Failure: no broker is given or reachable, or it refused a request.
    """

    async def run() -> Any:
        access = broker_access(broker, local, token, ca)
        record = broker_ledger.AppendLedger(ledger) if ledger is not None else None
        async with broker_client.JournalClient(
            access.url, access.token, access.ca, record
        ) as client:
            return await work(client)

    try:
        return asyncio.run(run())
    except broker_client.JournalError as error:
        is_reached = "cannot be reached" not in str(error)
        reason = FailureReason.REFUSED if is_reached else FailureReason.UNREACHABLE
        raise Failure(reason, str(error)) from None
    except (broker_ledger.AppendLedgerError, broker_stores.StoreError) as error:
        raise Failure(FailureReason.FAILED, str(error)) from None
    except (OSError, ValueError) as error:
        raise Failure(FailureReason.INVALID, str(error)) from None


def broker_access(
    broker: str | None, local: str | None, token: str, ca: Path | None
) -> "BrokerAccess":
    """Return the way to a broker.

    Raises:
        Failure: no broker is given, none of the cluster is ready, or the file with the authorities
            cannot be used.
    """
    if local is not None:
        found = brokers.answering_broker(clusters.open_store(local))
        access = found._replace(token=token or found.token, ca=ca or found.ca)
    elif broker is not None:
        access = brokers.BrokerAccess(broker, token, ca)
    else:
        raise Failure(FailureReason.INVALID, "no broker is given: use --local NAME or --broker URL")
    try:
        access.context()
    except OSError as error:
        cause = error.strerror or str(error)
        raise Failure(
            FailureReason.INVALID,
            f"the authorities of the brokers in {access.ca} cannot be used: {cause}; set --ca or"
            " BROKER_TRUSTED_CA_FILE to a file with PEM certificates",
        ) from None
    return access


def listing(
    selector: SelectorOption = "",
    broker: BrokerOption = None,
    local: LocalOption = None,
    token: TokenOption = "",
    ca: CaOption = None,
    output: OutputOption = None,
) -> None:
    """List journals: replication, primary, brokers, first store."""

    async def work(client: "JournalClient") -> "list[Listed]":
        return await client.journals(labels.parse_selector(selector))

    found: list[Listed] = ask_broker(broker, local, token, ca, work)
    if output in (Output.json, Output.yaml):
        print_document([document_of(journal) for journal in found], output)
        return
    rows = [
        [
            journal.spec.name,
            str(journal.spec.replication),
            journal.primary or "-",
            ",".join(journal.brokers) or "-",
            SUSPENSIONS[journal.suspend_level] or "-",
            next(iter(journal.spec.fragment.stores), "-"),
        ]
        for journal in found
    ]
    print_table(["JOURNAL", "REPLICATION", "PRIMARY", "BROKERS", "SUSPENDED", "STORE"], rows)


def document_of(journal: "Listed") -> dict[str, Any]:
    """Return a journal as JSON, in the form that an audit reads."""
    return {
        "name": journal.spec.name,
        "revision": journal.revision,
        "primary": journal.primary,
        "brokers": list(journal.brokers),
        "suspended": SUSPENSIONS[journal.suspend_level] or "none",
        "spec": journal.spec.row_fields(),
    }


def append(
    journal: JournalArgument,
    file: Annotated[
        Path | None,
        typer.Argument(help="Content; - or nothing for standard input.", show_default=False),
    ] = None,
    offset: Annotated[
        int, typer.Option("--offset", help="Offset at which it must begin.", min=0)
    ] = 0,
    ledger: Annotated[
        Path | None,
        typer.Option(
            "--ledger", help="File that records the append for audits.", metavar="FILE",
            show_default=False,
        ),
    ] = None,
    broker: BrokerOption = None,
    local: LocalOption = None,
    token: TokenOption = "",
    ca: CaOption = None,
    output: OutputOption = None,
) -> None:  # fmt: skip
    """Append a file as a whole, or standard input, and print its offsets."""
    try:
        stream = sys.stdin.buffer if file in (None, Path("-")) else file.open("rb")
    except OSError as error:
        cause = error.strerror or str(error)
        raise Failure(FailureReason.NOT_FOUND, f"{file} cannot be read: {cause}") from None

    async def work(client: "JournalClient") -> Any:
        return await client.append(journal, iter(lambda: stream.read(CHUNK), b""), offset=offset)

    with stream:
        commit = ask_broker(broker, local, token, ca, work, ledger)
    text = f"appended {commit.end - commit.begin} bytes at {commit.begin}"
    done(text, output, begin=commit.begin, end=commit.end, sha1=commit.sum.hex())


def read(
    journal: JournalArgument,
    offset: Annotated[
        int, typer.Option("--offset", help="First offset; -1 for the write head.", min=-1)
    ] = 0,
    end: Annotated[int, typer.Option("--end", help="Offset after the last byte.", min=0)] = 0,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for more at the write head.")
    ] = False,
    broker: BrokerOption = None,
    local: LocalOption = None,
    token: TokenOption = "",
    ca: CaOption = None,
) -> None:
    """Write the bytes of a journal to standard output.

    A range whose bytes are lost is passed over, with a warning. An offset after the write head is
    refused without `--follow`.
    """

    def on_gap(begin: int, until: int) -> None:
        warn(f"{journal}: no fragment has the bytes from {begin} to {until}; the output lacks them")

    async def work(client: "JournalClient") -> None:
        parts = client.read(journal, offset, is_blocking=follow, end=end, on_gap=on_gap)
        async for _, data in parts:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()

    ask_broker(broker, local, token, ca, work)


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


def reset_head(
    journal: JournalArgument,
    broker: BrokerOption = None,
    local: LocalOption = None,
    token: TokenOption = "",
    ca: CaOption = None,
    output: OutputOption = None,
) -> None:
    """Resume a journal whose last bytes are lost, at its write head.

    A journal without a store needs `qsync journals accept-loss` instead.
    """

    async def work(client: "JournalClient") -> tuple[int, bool]:
        try:
            return (await client.append(journal, suspend=requests.Suspend.KEEP)).end, False
        except broker_client.JournalError as error:
            if error.status is not status.Status.INDEX_HAS_GREATER_OFFSET:
                raise
        found = await client.journals(broker_client.selector_of_name(journal))
        if found and not found[0].spec.fragment.stores:
            raise Failure(
                FailureReason.REFUSED,
                f"{journal} cannot continue at its write head: it has no store, and no broker has"
                " all acknowledged bytes; start the missing brokers, or accept the loss with"
                f" `qsync journals accept-loss {journal}`",
            )
        return await client.reset_head(journal), True

    head, is_reset = ask_broker(broker, local, token, ca, work)
    text = f"{journal} continues at {head}"
    if not is_reset:
        text = (
            f"{journal}: its brokers have all acknowledged bytes, up to {head}; nothing was changed"
        )
    done(text, output, head=head, changed=is_reset)


def edit(
    selector: SelectorOption = "",
    broker: BrokerOption = None,
    local: LocalOption = None,
    token: TokenOption = "",
    ca: CaOption = None,
    output: OutputOption = None,
) -> None:
    """Change specifications in $EDITOR; a concurrent change is refused."""

    async def find(client: "JournalClient") -> "list[Listed]":
        return await client.journals(labels.parse_selector(selector))

    found: list[Listed] = ask_broker(broker, local, token, ca, find)
    document = [
        {"name": one.spec.name, "revision": one.revision, **one.spec.row_fields()} for one in found
    ]
    if not found:
        which = f"no journal matches {selector!r}" if selector else "the cluster has no journal"
        text = f"{which}: nothing was changed; `qsync journals list` shows all journals"
        raise Failure(FailureReason.NOT_FOUND, text)
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    edited = _edited(text)
    changes = _specs(edited, {one.spec.name: one for one in found}) if edited != text else []
    if not changes:
        done("nothing was changed", output, changed=0)
        return

    async def apply(client: "JournalClient") -> None:
        await client.apply(changes)

    ask_broker(broker, local, token, ca, apply)
    done(f"{len(changes)} changed", output, changed=len(changes))


def _edited(text: str) -> str:
    """Return a text after a person has edited it."""
    editor = os.environ.get("EDITOR", "vi")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journals.yaml"
        path.write_text(text)
        try:
            code = subprocess.call([*shlex.split(editor), str(path)])
        except OSError as error:
            raise Failure(
                FailureReason.NOT_INSTALLED, f"{editor} cannot be run: {error}; set EDITOR"
            ) from None
        if code:
            raise Failure(FailureReason.FAILED, f"{editor} ended with {code}: nothing was changed")
        return path.read_text()


def _specs(text: str, known: "dict[str, Listed]") -> "list[tuple[JournalSpec, int]]":
    """Return the changed specifications of an edited text, with their revisions."""
    try:
        documents = yaml.safe_load(text) or []
        fields = {document.pop("name"): document for document in documents}
        revisions = {name: int(document.pop("revision", 0)) for name, document in fields.items()}
    except KeyError:
        text = "the edited text is invalid: a journal has no key `name`; restore it"
        raise Failure(FailureReason.INVALID, text) from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark is not None else 1
        text = f"the edited text is invalid: line {line}: {error.problem}; correct this line"
        raise Failure(FailureReason.INVALID, text) from None
    except (yaml.YAMLError, AttributeError, TypeError, ValueError) as error:
        cause = str(error).splitlines()[0]
        raise Failure(FailureReason.INVALID, f"the edited text is invalid: {cause}") from None
    changes = []
    for name, document in fields.items():
        spec = broker_spec.JournalSpec.from_row(name, document)
        fields_of_spec = spec.row_fields()
        found = (
            _unknown_key(document, {"name": "", "revision": 0, **fields_of_spec})
            or _difference(document, fields_of_spec)
            or broker_spec.problem(spec)
        )
        if found:
            raise Failure(FailureReason.INVALID, f"{name}: {found}")
        if name not in known and revisions[name]:
            raise Failure(
                FailureReason.INVALID,
                f"a journal cannot be renamed: {name} was not listed; restore the name, or set its"
                " revision to 0 to create a journal",
            )
        if name not in known or known[name].spec != spec:
            changes.append((spec, revisions[name]))
    return changes


def _is_equal(given: Any, known: Any) -> bool:
    """Return whether two values are equal, or the same duration, as `24h` and `24h0m0s`."""
    if given == known or not isinstance(given, str) or not isinstance(known, str):
        return bool(given == known)
    try:
        return duration.parse_duration(given) == duration.parse_duration(known)
    except ValueError:
        return False


def _difference(given: Any, known: Any, field: str = "") -> str:
    """Return the first field of an edited document that has no valid value, or ""."""
    if not isinstance(given, dict) or not isinstance(known, dict):
        return "" if _is_equal(given, known) else f"{field}: {given!r} is invalid{_hint(field)}"
    inner = f"{field}." if field else ""
    for name in known:
        if name not in given:
            return f"{inner}{name}: is missing"
    for name, value in given.items():
        found = _difference(value, known[name], f"{inner}{name}")
        if found:
            return found
    return ""


def _hint(field: str) -> str:
    """Return the end of a sentence that lists the values of a field, if these are few."""
    values = {
        "flags": [one.name for one in broker_spec.Flags if one],
        "fragment.compression_codec": [one.name for one in codecs.Codec],
    }.get(field)
    return f"; use one of {', '.join(values)}" if values else ""


def _unknown_key(given: Any, known: Any, field: str = "") -> str:
    """Return a sentence about the first key that no specification has, or ""."""
    if not isinstance(given, dict) or not isinstance(known, dict):
        return ""
    inner = f"{field}." if field else ""
    for name, value in given.items():
        if name not in known:
            close = difflib.get_close_matches(str(name), known, 1)
            hint = f"did you mean {close[0]}?" if close else f"use one of {', '.join(known)}"
            return f"{inner}{name}: is unknown; {hint}"
        found = _unknown_key(value, known[name], f"{inner}{name}")
        if found:
            return found
    return ""


def expired(listed: "list[RemoteFragment]", before_s: float) -> "list[RemoteFragment]":
    """Return the first fragments of a journal that were all persisted before a time.

    Args:
        listed: all fragments in their order; those that are not persisted have no store.
        before_s: Unix time.
    """
    persisted = [fragment for fragment in listed if fragment.store]
    # One that was merged is later than the fragments after it, which would leave a gap.
    return list(takewhile(lambda one: one.mod_time < before_s, persisted[:-1]))


def prune(
    selector: SelectorOption = "",
    dry_run: DryRunOption = False,
    broker: BrokerOption = None,
    local: LocalOption = None,
    token: TokenOption = "",
    ca: CaOption = None,
    output: OutputOption = None,
) -> None:
    """Delete persisted fragments that are older than `fragment.retention` of their journal.

    The stores are accessed from this machine. Journals without a retention keep everything, and
    each journal keeps its last fragment, which states its write head. Fragments after one that is
    kept are kept: a journal has no gap.
    """

    async def work(client: "JournalClient") -> tuple[int, int]:
        stores, count, size = broker_stores.FragmentStores(), 0, 0
        for journal in await client.journals(labels.parse_selector(selector)):
            retention_s = journal.spec.fragment.retention_ns / 1e9
            if retention_s <= 0 or not journal.brokers:
                continue
            listed = await client.fragments(journal.spec.name)
            for fragment in expired(listed, time.time() - retention_s):
                count, size = count + 1, size + fragment.end - fragment.begin
                if not dry_run:
                    await stores.delete(fragment)
        return count, size

    count, size = ask_broker(broker, local, token, ca, work)
    verb = "would be deleted" if dry_run else "deleted"
    done(f"{count} fragments with {size} bytes {verb}", output, fragments=count, bytes=size)
