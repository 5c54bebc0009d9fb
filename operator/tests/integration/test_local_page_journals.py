"""The web page's view of brokers with TLS and keys, whose tokens the supervisor issues itself."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from qsync_local.brokerpage import LocalBrokers
from qsync_local.store import ClusterFiles
from qsync_testing.operator.local_clusters import Home
from qsync_testing.paths import EXAMPLES
from qsync_web.journals import PageJournals

KEY = "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA=="


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path / "home")
    keys = tmp_path / "keys"
    keys.write_text(KEY)
    text = (EXAMPLES / "journals.yaml").read_text()
    fields = f"port: 0\n    tls: true\n    authKeysFile: {keys}"
    manifest = tmp_path / "journals.yaml"
    manifest.write_text(text.replace("port: 8080", fields))
    home.do("local", "apply", "-f", manifest)
    yield home
    home.close()


async def looked_at(store: ClusterFiles, part: str) -> PageJournals:
    brokers = LocalBrokers(store)
    try:
        return await brokers.observe(part)
    finally:
        await brokers.close()


def test_supervisor_lists_journals_with_a_token_of_its_own(home: Home, tmp_path: Path) -> None:
    store = ClusterFiles(home.directory / "events")
    assert LocalBrokers(store).exist
    found = asyncio.run(looked_at(store, "orders"))
    assert [(one.state, one.zone) for one in found.brokers] == [("ready", "default")] * 3
    assert [(one.name, one.state) for one in found.journals] == [("orders/eu", "Writable")]
    (tmp_path / "keys").unlink()
    found = asyncio.run(looked_at(store, "orders"))
    assert [one.state for one in found.brokers] == ["ready"] * 3
    assert found.journals == []
    assert f"authKeysFile {tmp_path / 'keys'} cannot be used: No such file" in found.note
