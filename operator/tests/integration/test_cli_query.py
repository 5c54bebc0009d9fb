"""`qsync query`: the tables that a statement names, nothing else, and nothing is written."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from qsync_cli import clusters
from qsync_cli.data import query
from qsync_cli.data.connecting import ConnectionTarget
from qsync_cli.failure import Failure
from qsync_cli.options import Output
from qsync_node.archive import reader
from qsync_testing.operator.local_clusters import Home
from qsync_testing.paths import EXAMPLES, ROOT


@pytest.mark.parametrize(
    ("statement", "tables"),
    [
        ("select 1", []),
        ("select * from orders o join orders using (id)", [("", "orders")]),
        ('with a as (select 1) select * from "My ""space""", a', [("", 'My "space"'), ("", "a")]),
        ("select 1 where 2 in (select id from a union from b)", [("", "a"), ("", "b")]),
        ("select * from compacted.orders, history.orders",
         [("compacted", "orders"), ("history", "orders")]),
        ("explain select * from orders", [("", "orders")]),
        ("describe orders", [("", "orders")]),
    ],
)  # fmt: skip
def test_statement_names_its_tables(statement: str, tables: list[tuple[str, str]]) -> None:
    assert query.tables_of(statement) == tables


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("delete from orders", "one SELECT"),
        ("select 1; select 2", "one SELECT"),
        ("copy (select 1) to 'x'", "one SELECT"),
        ("attach 'x'", "one SELECT"),
        ("install httpfs", "one SELECT"),
        ("", "one SELECT"),
        ("selec 1", "syntax error"),
        ("select * from other.orders", "unknown table other.orders"),
    ],
)
def test_other_statements_are_refused(statement: str, text: str) -> None:
    with pytest.raises(Failure, match=text):
        query.tables_of(statement)


def written(folder: Path, name: str, **columns: list[Any]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.table(columns), folder / name)
    return str(folder / name)


def test_columns_of_the_same_name_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    for output in (Output.json, Output.yaml):
        with query.opened({}, Path("/nonexistent")) as connection:
            statement = "select 1 as id, 2 as id_1, 3 as id, 4 as ID"
            query._print(connection.execute(statement), output)
    as_json, *as_yaml = capsys.readouterr().out.splitlines()
    assert json.loads(as_json) == {"id": 1, "id_1": 2, "id_2": 3, "ID": 4}
    assert as_yaml == ["- id: '1'", "  id_1: '2'", "  id_2: '3'", "  ID: '4'"]


def test_statement_reads_its_tables_only(tmp_path: Path) -> None:
    file = written(tmp_path / "in", "a.parquet", id=[1, 2])
    other = written(tmp_path / "out", "b.parquet", id=[3])
    with query.opened({("", 'a"b'): file, ("history", "a"): file}, tmp_path / "in") as connection:
        assert query._run(connection, 'select sum(id) from "a""b"').fetchall() == [(3,)]
        assert query._run(connection, "select max(id) from history.a").fetchall() == [(2,)]
        for statement in (
            f"select * from '{other}'",
            f"select * from read_parquet('{other}')",
            "select * from read_text('/etc/passwd')",
            "select nothing from history.a",
        ):
            with pytest.raises(Failure, match="the statement failed"):
                query._run(connection, statement)


def test_duckdb_reads_the_newest_tables_as_the_page_prints(tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    for index, customer in ((9, "ann"), (10, "bob")):
        made = folder / "compactions" / f"{index:020}-1-aa"
        written(made / "spaces" / "512-orders", "a.parquet", customer=[customer])
        (made / "manifest.json").touch()
    written(
        folder / "compactions" / f"{11:020}-1-aa" / "spaces" / "512-orders", "a", customer=["x"]
    )
    page = (ROOT / "docs" / "spark.md").read_text()
    (block,) = re.findall(r"```console\n(NEWEST=.*?)```", page, re.DOTALL)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", block.replace("/var/archive/orders", str(folder))],
        capture_output=True, text=True, check=False, env={**os.environ, "PATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "bob" in done.stdout
    assert "ann" not in done.stdout


def test_compacted_tables_are_those_of_the_newest_compaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "archive"
    written(folder / "compactions" / "new" / "spaces" / "512-Orders", "a.parquet", id=[1])
    made = [SimpleNamespace(folder=f"compactions/{name}", index=7) for name in ("old", "new")]
    spec = SimpleNamespace(archive=SimpleNamespace(url=f"file://{folder}"))
    store = SimpleNamespace(exists=lambda: True)
    monkeypatch.setattr(clusters, "store_of", lambda name: store)
    monkeypatch.setattr(clusters, "open_store", lambda name: store)
    monkeypatch.setattr(clusters, "load_cluster", lambda store: SimpleNamespace(spec=spec))
    monkeypatch.setattr(reader, "load_archive", lambda url: SimpleNamespace(compactions=made))
    table = ("compacted", "orders")
    files = query._archived(ConnectionTarget("orders"), [table])
    assert files[table].endswith("new/spaces/512-Orders/*.parquet")
    with query.opened(files, tmp_path) as connection:
        assert query._run(connection, "from compacted.orders").fetchall() == [(1,)]
    with pytest.raises(Failure, match="--history"):
        query._archived(ConnectionTarget("orders"), [("history", "orders")])
    made.clear()
    with pytest.raises(Failure, match="local compact orders"):
        query._archived(ConnectionTarget("orders"), [table])
    spec.archive = SimpleNamespace(url="s3://bucket/orders")
    with pytest.raises(Failure, match="s3://bucket/orders"):
        query._archived(ConnectionTarget("orders"), [table])


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    home = Home(tmp_path_factory.mktemp("query") / "home")
    home.do("local", "apply", "-f", EXAMPLES / "three-nodes.yaml")
    yield home
    home.close()


def test_rows_of_a_cluster_are_a_table(home: Home) -> None:
    for number, name in ((1, "ann"), (2, "bob"), (3, "ann")):
        home.do("put", "orders", "orders", f'[{number}, "{name}", {number}.5]')
    done = home.run(
        "query",
        "orders",
        "select customer, sum(total) as total from Orders group by all order by 1",
    )
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["customer", "total"], ["ann", "5.0"], ["bob", "2.5"],
    ]  # fmt: skip
    assert "3 rows, as they were at index" in done.stderr
    shown = home.do("query", "orders", "select * from orders where id = 2", "-o", "json")
    assert json.loads(shown) == {"id": 2, "customer": "bob", "total": 2.5, "_rest": None}
    joined = "with a as (select id from orders) select count(*) as n from orders join a using (id)"
    assert json.loads(home.do("query", "orders", joined, "-o", "json")) == {"n": 3}
    times = home.do("query", "orders", "select now()::timestamptz as t, 1.50::decimal(5, 2) as d")
    assert times.split()[-1] == "1.50"
    assert '"' not in times
    assert "nothing does not exist" in home.refuse("query", "orders", "from nothing")
    assert "need an archive" in home.refuse("query", "orders", "from history.orders")
    assert "disabled" in home.refuse("query", "orders", "from read_text('/etc/passwd')")
