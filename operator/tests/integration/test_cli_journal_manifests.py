"""`qsync local apply` of journals: declarations, ports, TLS and tokens."""

import json
import socket
import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from qsync_broker.auth import Authorizer, Capability
from qsync_testing.operator.local_clusters import Home, ask
from qsync_testing.paths import EXAMPLES
from qsync_testing.ports import free_port

pytestmark = pytest.mark.timeout(400)
EXAMPLE = EXAMPLES / "journals.yaml"
KEY = "cGVyaGFwcyBhIHNlY3JldCBvZiAzMiBieXRlcyEhISE="


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("enabled: true", "enabled: false", "needs spec.journals.enabled: true"),
        ("cluster: events", "cluster: other", "but the manifest's cluster is events"),
        ("replication: 3", "replication: 9", "spec.replication 9"),
        ("replication: 3", "replication: 5", "spec.replication 5 needs as many voters, but"),
        ("journal: orders/eu", "journal: abc", "spec.journal 'abc'"),
    ],
)
def test_invalid_manifest_is_refused(
    home: Home, tmp_path: Path, old: str, new: str, sentence: str
) -> None:
    manifest = tmp_path / "journals.yaml"
    manifest.write_text(EXAMPLE.read_text().replace(old, new))
    assert sentence in home.refuse("local", "apply", "-f", manifest)


def test_second_declaration_of_a_journal_is_refused(home: Home, tmp_path: Path) -> None:
    manifest = tmp_path / "journals.yaml"
    text = EXAMPLE.read_text()
    manifest.write_text(text + "---\n" + text.partition("---\n")[2])
    assert "two QsyncJournals declare the journal orders/eu" in home.refuse(
        "local", "apply", "-f", manifest
    )


def test_declared_journal_that_was_deleted_is_applied_again(events: Home, tmp_path: Path) -> None:
    local = ("--local", "events")
    assert "at 0" in events.do("journals", "append", "orders/eu", EXAMPLE, *local)
    events.do("journals", "delete", "orders/eu", "--yes", *local)
    apply = ("local", "apply", "-f", tmp_path / "journals.yaml", "--timeout", "30")
    said = events.do(*apply)
    assert "qsynccluster.qsync.dev/events unchanged\n" in said
    assert "qsyncjournal.qsync.dev/orders-eu created\n" in said
    assert "at 0" in events.do("journals", "append", "orders/eu", EXAMPLE, *local)
    assert "qsyncjournal.qsync.dev/orders-eu unchanged\n" in events.do(*apply)


def test_journal_alone_is_applied_and_stays_deleted(events: Home, tmp_path: Path) -> None:
    local = ("--local", "events")
    cluster, _, journal = (tmp_path / "journals.yaml").read_text().partition("---\n")
    alone, later = tmp_path / "journal.yaml", tmp_path / "cluster.yaml"
    alone.write_text(journal.replace("orders/eu", "orders/us").replace("orders-eu", "orders-us"))
    later.write_text(cluster)
    said = events.do("local", "apply", "-f", alone)
    assert "qsynccluster.qsync.dev/events unchanged\n" in said
    assert "qsyncjournal.qsync.dev/orders-us created\n" in said
    alone.write_text(alone.read_text().replace("replication: 3", "replication: 2"))
    assert "qsyncjournal.qsync.dev/orders-us configured\n" in events.do(
        "local", "apply", "-f", alone
    )
    alone.write_text(alone.read_text().replace("orders/us", "orders/uk"))
    said = events.refuse("local", "apply", "-f", alone)
    assert "spec.journal of QsyncJournal orders-us cannot change from orders/us" in said
    alone.write_text(alone.read_text().replace("cluster: events", "cluster: other"))
    assert "QsyncCluster other not found: apply it first" in events.refuse(
        "local", "apply", "-f", alone
    )
    events.do("journals", "delete", "orders/us", "--yes", *local)
    events.do("local", "apply", "-f", later)
    events.do("local", "apply", "-f", tmp_path / "journals.yaml")
    listed = json.loads(events.do("journals", "list", *local, "-o", "json"))
    assert [one["name"] for one in listed] == ["orders/eu"]


def test_port_in_use_is_reported_and_taken_once_it_is_free(home: Home, tmp_path: Path) -> None:
    manifest = tmp_path / "journals.yaml"
    port = free_port(3)
    manifest.write_text(EXAMPLE.read_text().replace("port: 8080", f"port: {port}"))
    with socket.create_server(("127.0.0.1", port + 1)):
        said = home.refuse("local", "apply", "-f", manifest)
        assert f"the broker of events-1 cannot listen: port {port + 1} is in use; stop" in said
        assert "change spec.journals.port" in home.do("local", "status", "events")
        assert "PortInUse" in home.events("events")
    home.do("local", "apply", "-f", manifest)
    assert sorted(one["http"] for one in home.brokers("events").values()) == [
        port,
        port + 1,
        port + 2,
    ]
    manifest.write_text(EXAMPLE.read_text().replace("port: 8080", f"port: {port + 3}"))
    home.do("local", "apply", "-f", manifest)  # the brokers move, one after the other
    assert min(one["http"] for one in home.brokers("events").values()) == port + 3


def test_disabled_journals_keep_their_bytes(events: Home, tmp_path: Path) -> None:
    http = [broker["http"] for broker in events.brokers("events").values()]
    assert ask("PUT", f"http://127.0.0.1:{http[0]}/orders/eu", b"kept\n")[0] == 204
    cluster = (tmp_path / "journals.yaml").read_text().partition("---\n")[0]
    manifest = tmp_path / "disabled.yaml"
    manifest.write_text(cluster.replace("enabled: true", "enabled: false"))
    events.do("local", "apply", "-f", manifest)
    deadline_s = time.monotonic() + 60
    while events.brokers("events") and time.monotonic() < deadline_s:
        time.sleep(0.1)  # between two polls: the supervisor stops the brokers
    assert events.brokers("events") == {}
    events.do("local", "apply", "-f", tmp_path / "journals.yaml")
    http = [broker["http"] for broker in events.brokers("events").values()]
    assert ask("GET", f"http://127.0.0.1:{http[1]}/orders/eu") == (206, b"kept\n")


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (None, "No such file or directory"),
        ("", "has no key: write keys in Base64, separated by spaces"),
    ],
)
def test_unusable_keys_are_refused_before_anything_is_stored(
    home: Home, tmp_path: Path, text: str | None, cause: str
) -> None:
    keys, manifest = tmp_path / "keys", tmp_path / "journals.yaml"
    if text is not None:
        keys.write_text(text)
    manifest.write_text(EXAMPLE.read_text().replace("port: 8080", f"authKeysFile: {keys}"))
    said = home.refuse("local", "apply", "-f", manifest)
    assert f"spec.journals.authKeysFile {keys} cannot be used: " in said
    assert f"{cause}; write keys in Base64 to this file, or correct the path (Invalid)" in said
    assert not (home.directory / "events").exists()


def test_running_cluster_changes_to_tls_and_tokens(events: Home, tmp_path: Path) -> None:
    events.do("journals", "append", "orders/eu", EXAMPLE, "--local", "events")
    keys, manifest = tmp_path / "keys", tmp_path / "journals.yaml"
    keys.write_text(KEY)
    text = manifest.read_text().replace("port: 0", f"tls: true\n    authKeysFile: {keys}")
    manifest.write_text(text)
    events.do("local", "apply", "-f", manifest)
    folder = events.directory / "events"
    address = f"https://127.0.0.1:{next(iter(events.brokers('events').values()))['http']}"
    trusted = ("--ca", folder / "brokers-tls" / "ca.crt")
    assert "a token is missing" in events.refuse("journals", "list", "--broker", address, *trusted)
    assert events.run("journals", "list", "--broker", address).returncode == 1
    token = Authorizer.of_text(KEY).sign(Capability.LIST | Capability.READ, {}, 60)
    shown = events.do("journals", "list", "--broker", address, *trusted, "--token", token)
    assert "orders/eu" in shown
    commit = events.do("journals", "append", "orders/eu", EXAMPLE, "--local", "events")
    assert f"at {EXAMPLE.stat().st_size}" in commit
    assert "orders/eu" in events.do("local", "journals", "events")
    context = ssl.create_default_context(cafile=folder / "brokers-tls" / "ca.crt")
    for code, headers in ((401, {}), (404, {"Authorization": f"Bearer {token}"})):
        request = urllib.request.Request(f"{address}/no/journal", headers=headers)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=5, context=context)
        assert refused.value.code == code
    for path in (folder / "brokers-tls").iterdir():
        assert path.stat().st_mode & 0o077 == 0
