"""`qsync demo`: a local cluster with sample data, its console and its live view.

At a terminal the command offers both. Elsewhere it prints the commands and ends.
"""

import io
import json
import subprocess
import sys
import time
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

import typer

from qsync_cli import clusters, waiting
from qsync_cli.data.connecting import ConnectionTarget
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.local import apply as local_apply
from qsync_cli.options import Output, OutputOption
from qsync_cli.output import print_document, say
from qsync_cli.where import is_plugin
from qsync_client import Committed
from qsync_local.store import home
from qsync_operator.api import manifest as api_manifest

if TYPE_CHECKING:
    from qsync_client import SyncClient

NAME = "demo"
READY_S = 60.0
CUSTOMERS = ("ada", "bob", "chen", "dana", "emil", "fatou", "goran", "hana")
ORDERS = 200
ITEMS = ("tea", "coffee", "bread", "apples", "paper", "lamp", "chair")
MANIFEST = """
apiVersion: qsync.dev/v1alpha1
kind: QsyncCluster
metadata: {{name: {name}}}
spec:
  replicas: 3
  storage: {{retention: Delete}}
  archive: {{url: {archive}, interval: 10s}}
  spaces:
    - name: customers
      isSync: true
      format:
        - {{name: id, type: unsigned}}
        - {{name: name, type: string}}
      indexes:
        - {{name: primary, parts: [{{field: id}}]}}
        - {{name: by_name, unique: true, parts: [{{field: name}}]}}
    - name: orders
      isSync: true
      format:
        - {{name: id, type: unsigned}}
        - {{name: customer, type: string}}
        - {{name: item, type: string}}
        - {{name: total, type: number}}
      indexes:
        - {{name: primary, parts: [{{field: id}}]}}
        - {{name: by_customer, unique: false, parts: [{{field: customer}}, {{field: id}}]}}
"""
REMOVE = f"qsync destroy {NAME} --delete-data --yes"
COMMANDS = (
    (f"qsync sh {NAME}", "a console: try `select orders --limit 5`"),
    (f"qsync top {NAME}", "members, latencies and failovers, live"),
    (f"qsync web {NAME}", "the same as a web page"),
    (f'qsync put {NAME} orders \'[201, "ada", "tea", 4.5]\'', "one durable write"),
    (
        f"qsync chaos {NAME} --kill-leader --every 5s --ledger chaos.jsonl",
        "kill leaders under load",
    ),
    ("qsync verify chaos.jsonl", "prove that no acknowledged write was lost"),
    (f"qsync audit {NAME}", "prove the same from the archived logs"),
    (REMOVE, "remove the cluster and its files"),
)


def demo(output: OutputOption = None) -> None:
    """Start a local cluster with sample data, and offer its console and its live view."""
    if is_plugin():
        raise Failure(FailureReason.INVALID, "the demo is a local cluster: run `qsync demo`")
    begun_s = time.monotonic()
    is_document = output in (Output.json, Output.yaml)
    store = clusters.store_of(NAME)
    if not store.exists():
        archive = json.dumps(f"file://{store.directory / 'archive'}")
        text = MANIFEST.format(name=NAME, archive=archive)
        manifest = api_manifest.parse_manifest(text, "the manifest of the demo")
        with redirect_stdout(io.StringIO() if is_document else sys.stdout):
            local_apply.bring_up(manifest, False, READY_S, None)
    else:  # an interrupted demo may have no members or spaces yet
        clusters.ensure_supervisor(store)
        waiting.wait_ready(store, READY_S, is_document)
    with ConnectionTarget(NAME).connect() as client:
        rows = _fill(client)
    took_s = time.monotonic() - begun_s
    if output in (Output.json, Output.yaml):
        document = {
            "cluster": NAME, "directory": str(home() / NAME), "rows": rows,
            "seconds": round(took_s, 3), "commands": [command for command, _ in COMMANDS],
            "remove": REMOVE,
        }  # fmt: skip
        print_document(document, output)
        return
    say(f"{NAME} is ready after {took_s:.1f} s: three members, {rows} rows, in {home() / NAME}")
    say()
    for command, purpose in COMMANDS:
        say(f"  {command}")
        say(f"      {purpose}")
    if sys.stdin.isatty() and sys.stdout.isatty():
        _offer()


def _fill(client: "SyncClient") -> int:
    """Write the sample rows in one transaction. Return their number."""
    customers = [[number, name] for number, name in enumerate(CUSTOMERS, 1)]
    orders = [
        [
            number,
            CUSTOMERS[number % len(CUSTOMERS)],
            ITEMS[number % len(ITEMS)],
            1 + number % 40 / 4,
        ]
        for number in range(1, ORDERS + 1)
    ]
    with client.transaction() as transaction:
        for row in customers:
            transaction.replace("customers", row)
        for row in orders:
            transaction.replace("orders", row)
    if not isinstance(transaction.outcome, Committed):
        raise Failure(
            FailureReason.FAILED,
            f"the sample rows were not written: {transaction.outcome}; run `qsync demo` again",
        )
    return len(customers) + len(orders)


def _offer() -> None:
    """Open the console or the live view until the person leaves."""
    while True:
        say()
        chosen = typer.prompt("open the [c]onsole, the live [v]iew, or [q]uit", default="q")
        match chosen.strip().lower()[:1]:
            case "c":
                _open("sh")
            case "v":
                _open("top")
            case _:
                say(f"the cluster still runs; to remove it: {REMOVE}")
                return


def _open(verb: str) -> None:
    """Run a command of the demo in this terminal."""
    subprocess.run([sys.executable, "-m", "qsync_cli.main", verb, NAME], check=False)
