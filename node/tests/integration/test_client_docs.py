"""The examples of docs/unknown-outcomes.md and docs/clients.md work as printed."""

import asyncio
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import qsync_client
from qsync_client import SyncClient
from qsync_client.protocol.constants import Type
from qsync_client.protocol.frame import FrameDecoder
from qsync_client.protocol.spaces import SystemSpace
from qsync_testing.paths import EXAMPLES, ROOT
from qsync_testing.processes import PASSWORD, USER, ProcessCluster, running_cluster

SPACE = 512
FORMAT = [{"name": "id", "type": "unsigned"}, {"name": "balance", "type": "integer"}]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    with running_cluster(tmp_path_factory.mktemp("examples"), 3) as running:
        with SyncClient(running.addresses, USER, PASSWORD) as client:
            client.insert(
                SystemSpace.SPACE, [SPACE, 1, "accounts", "memtx", 0, {"is_sync": True}, FORMAT]
            )
            parts = [[0, "unsigned"]]
            client.insert(SystemSpace.INDEX, [SPACE, 0, "primary", "tree", {"unique": True}, parts])
        yield running


@pytest.fixture(autouse=True)
def no_rows(cluster: ProcessCluster) -> None:
    with SyncClient(cluster.addresses, USER, PASSWORD) as client:
        for row in list(client.scan("accounts")):
            client.delete("accounts", row[0])


class LossyProxy:
    """Passes bytes on, and closes the connection after an INSERT, whose answer is lost."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.lost = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        server = socket.create_connection(self._target)
        decoder = FrameDecoder()
        threading.Thread(target=self._return, args=(server, client), daemon=True).start()
        while data := client.recv(65536):
            is_insert = any(frame[0] == Type.INSERT for frame in decoder.feed(data))
            if is_insert:
                self.lost += 1
                client.shutdown(socket.SHUT_RDWR)
            server.sendall(data)
            if is_insert:
                return

    def _return(self, server: socket.socket, client: socket.socket) -> None:
        try:
            while data := server.recv(65536):
                client.sendall(data)
        except OSError:
            pass  # the client's side is closed

    def close(self) -> None:
        self._listener.close()


@contextmanager
def lossy(cluster: ProcessCluster) -> Iterator[LossyProxy]:
    proxy = LossyProxy(cluster.leader().address)
    try:
        yield proxy
    finally:
        proxy.close()


@pytest.mark.parametrize("language", ["python", "go"])
def test_keyed_insert_is_resolved_through_another_member(
    cluster: ProcessCluster, language: str
) -> None:
    assert language != "go" or shutil.which("go"), "the example needs Go: install it"
    program = {
        "python": [sys.executable, str(EXAMPLES / "keyed_insert.py"), USER, PASSWORD],
        "go": ["go", "run", str(EXAMPLES / "keyed_insert.go"), USER, PASSWORD, str(SPACE)],
    }[language]
    with lossy(cluster) as proxy:
        addresses = [proxy.address, *cluster.addresses]
        done = subprocess.run([*program, *addresses], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert re.fullmatch(r"committed at [1-9]\d*\n", done.stdout), done.stdout
        assert proxy.lost == 1, "the first answer was lost"
    with SyncClient(cluster.addresses, USER, PASSWORD) as client:
        assert client.get("accounts", 1) == [1, 100]
    page = (ROOT / "docs" / "unknown-outcomes.md").read_text()
    suffix = {"python": "py", "go": "go"}[language]
    assert f"examples/keyed_insert.{suffix}" in page


@pytest.mark.parametrize("language", ["python", "go"])
def test_keyed_insert_ends_at_once_with_the_cause(cluster: ProcessCluster, language: str) -> None:
    program, space = {
        "python": ([sys.executable, str(EXAMPLES / "keyed_insert.py")], []),
        "go": (["go", "run", str(EXAMPLES / "keyed_insert.go")], [str(SPACE)]),
    }[language]
    with SyncClient(cluster.addresses, USER, PASSWORD) as client:
        client.insert("accounts", [1, 7])
    for words, cause in (
        ([], "usage: keyed_insert"),
        ([USER, "wrong", *space, *cluster.addresses], "47"),
        ([USER, PASSWORD, *space, *cluster.addresses], "Duplicate key"),
    ):
        done = subprocess.run(
            [*program, *words], capture_output=True, text=True, check=False, timeout=25
        )
        assert done.returncode != 0, words
        assert cause in done.stderr, words
        assert "Traceback" not in done.stderr
        assert "panic" not in done.stderr


def test_printed_space_is_complete_in_a_manifest(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "unknown-outcomes.md").read_text()
    (block,) = re.findall(r"^    ```yaml\n(.*?)^    ```", page, re.MULTILINE | re.DOTALL)
    file = tmp_path / "accounts.yaml"
    head = "apiVersion: qsync.dev/v1alpha1\nkind: QsyncCluster\nmetadata: {name: bank}\n"
    file.write_text(f"{head}spec:\n  replicas: 1\n  spaces:\n{block}")
    done = subprocess.run(
        [sys.executable, "-m", "qsync_cli.main", "diff", "-f", str(file)],
        env={**os.environ, "QSYNC_HOME": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("language", "suffix"), [("py", "py"), ("go", "go")])
def test_printed_core_is_that_of_the_program(language: str, suffix: str) -> None:
    page = (ROOT / "docs" / "unknown-outcomes.md").read_text()
    (block,) = re.findall(rf"^    ```{language}\n(.*?)^    ```", page, re.MULTILINE | re.DOTALL)
    program = (EXAMPLES / f"keyed_insert.{suffix}").read_text()
    lines = {line.strip() for line in program.splitlines()}
    assert {line.strip() for line in block.splitlines()} <= lines


def run(source: str, cluster: ProcessCluster, folder: Path, **more: object) -> None:
    """Run a block; one that awaits runs in an event loop."""
    names = {name: getattr(qsync_client, name) for name in qsync_client.__all__}
    names |= {"addresses": cluster.addresses, "user": USER, "password": PASSWORD}
    names |= {"folder": folder, **more}
    if re.search(r"^\s*(async |.*await )", source, re.MULTILINE):
        body = "".join(f"    {line}\n" for line in source.splitlines())
        exec(compile(f"async def main():\n{body}", "page", "exec"), names)  # noqa: S102
        asyncio.run(names["main"]())
    else:
        exec(compile(source, "page", "exec"), names)  # noqa: S102  # runs the printed example


@pytest.mark.parametrize("page", ["clients.md", "unknown-outcomes.md"])
def test_printed_python_runs(
    cluster: ProcessCluster, tmp_path: Path, page: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Blocks of a page run one after the other, and print the text block after them."""
    text = (ROOT / "docs" / page).read_text()
    found = re.findall(
        r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", text, re.MULTILINE | re.DOTALL
    )
    assert found
    for source, printed in found:
        run(source, cluster, tmp_path)
        output = re.sub(r"(at |at=)\d+", r"\1N", capsys.readouterr().out)
        if printed:
            assert output == re.sub(r"(at |at=)\d+", r"\1N", printed)
