"""Users, roles and TLS of a local cluster, with real processes."""

import json
import ssl
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml
from cryptography import x509

from qsync_local.certificates import CertificateFiles, member_names
from qsync_operator.resources.authority import CERTIFICATE_LIFE, CertificateAuthority, renew
from qsync_testing.operator.local_clusters import Home

pytestmark = pytest.mark.timeout(240)
SPACES = [
    {
        "name": name,
        "format": [{"name": "id", "type": "unsigned"}, {"name": "text", "type": "string"}],
        "indexes": [{"name": "primary", "parts": [{"field": "id"}]}],
    }
    for name in ("orders", "prices")
]
CLERK = {"name": "clerk", "grants": [{"space": "orders", "privileges": ["read", "write"]}]}
ANN = {"name": "ann", "roles": ["clerk"], "passwordSecret": "ann"}
READER = {
    "name": "reader",
    "grants": [{"space": "orders", "privileges": ["read"]}],
    "passwordSecret": "reader",
}
SPEC = {"replicas": 1, "spaces": SPACES, "roles": [CLERK], "users": [ANN, READER]}


def manifest(folder: Path, spec: dict[str, Any], **passwords: str) -> Path:
    """Write a manifest of the cluster `shop`, with a Secret for each password."""
    cluster = {
        "apiVersion": "qsync.dev/v1alpha1",
        "kind": "QsyncCluster",
        "metadata": {"name": "shop"},
        "spec": spec,
    }
    secrets = [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name},
            "stringData": {"password": password},
        }
        for name, password in passwords.items()
    ]
    path = folder / "shop.yaml"
    path.write_text(yaml.safe_dump_all([cluster, *secrets]))
    return path


def credentials(home: Home, *options: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(home.do("credentials", "shop", *options, "-o", "json"))
    return found


def test_users_may_do_exactly_what_their_roles_allow(home: Home, tmp_path: Path) -> None:
    file = manifest(tmp_path, SPEC, ann="first", reader="other")
    home.do("apply", "-f", file)
    stored = home.directory / "shop" / "manifest-secrets.json"
    assert stored.stat().st_mode & 0o777 == 0o600

    home.do("put", "shop", "orders", '[1, "tea"]', "--user", "ann")
    assert "tea" in home.do("get", "shop", "orders", "1", "--user", "reader")
    said = home.refuse("put", "shop", "orders", '[2, "x"]', "--user", "reader")
    assert "Write access to space 'orders' is denied for user 'reader'" in said
    assert "'prices' does not exist" in home.refuse("get", "shop", "prices", "1", "--user", "ann")
    assert credentials(home, "--user", "ann")["password"] == "first"
    assert "the manifest of shop has app, ann, reader" in home.refuse(
        "credentials", "shop", "--user", "bob"
    )

    assert "qsynccluster.qsync.dev/shop unchanged" in home.do("apply", "-f", file)
    changed = manifest(tmp_path, SPEC, ann="second", reader="other")
    assert "qsynccluster.qsync.dev/shop configured" in home.do("apply", "-f", changed)
    home.do("put", "shop", "orders", '[3, "milk"]', "--user", "ann", "--password", "second")
    assert "credentials are invalid" in home.refuse(
        "get", "shop", "orders", "1", "--user", "ann", "--password", "first"
    )


def test_an_omitted_user_is_kept_and_a_missing_secret_is_refused(
    home: Home, tmp_path: Path
) -> None:
    said = home.refuse("apply", "-f", manifest(tmp_path, SPEC, ann="first"))
    assert "Secret reader of spec.users[reader].passwordSecret not found" in said
    home.do("apply", "-f", manifest(tmp_path, SPEC, ann="first", reader="other"))
    home.do("apply", "-f", manifest(tmp_path, SPEC))  # the stored Secrets remain
    omitted = manifest(tmp_path, {**SPEC, "users": [ANN]})
    done = home.run("apply", "-f", omitted)
    assert done.returncode == 0, done.stderr
    assert "spec.users[reader] is not in the manifest any more" in done.stderr
    home.do("count", "shop", "orders", "--user", "reader", "--password", "other")


def test_members_with_tls_refuse_clients_that_use_none_or_another_authority(
    home: Home, tmp_path: Path
) -> None:
    spec = {"replicas": 3, "spaces": SPACES, "tls": {"clients": "Require"}}
    file = manifest(tmp_path, spec)
    home.do("apply", "-f", file)
    assert "unchanged" in home.do("apply", "-f", file)
    for verb in (
        ("put", "shop", "orders", '[1, "tea"]'),
        ("get", "shop", "orders", "1"),
        ("sh", "shop", "-c", "get orders 1"),
        ("switchover", "shop"),
        ("status", "shop", "--check"),
    ):
        home.do(*verb)

    found = credentials(home)
    secret = quote(found["password"], safe="")
    place = f"{found['host']}:{found['tlsPort']}?transport=ssl"
    assert found["uri"] == f"tarantool://app:{secret}@{place}"
    address = f"{found['host']}:{found['port']}"
    login = ("--user", "app", "--password", found["password"])
    get = ("get", address, "orders", "1", *login)
    assert "the port requires TLS; specify --ca FILE" in home.refuse(*get)
    assert "tea" in home.do(*get, "--ca", found["caFile"])
    other = CertificateFiles(tmp_path / "other")
    other.reconcile("shop", member_names("shop"))
    begun_s = time.monotonic()
    said = home.refuse(*get, "--ca", str(other.authority))
    assert "its certificate is not signed by an authority in" in said
    assert time.monotonic() - begun_s < 8  # at once, not after the deadline of the client


def test_tls_begins_only_while_no_member_runs(home: Home, tmp_path: Path) -> None:
    plain = manifest(tmp_path, {"replicas": 1, "spaces": SPACES})
    home.do("apply", "-f", plain)
    assert "caFile" not in credentials(home)
    encrypted = manifest(tmp_path, {"replicas": 1, "spaces": SPACES, "tls": {}})
    said = home.refuse("apply", "-f", encrypted)
    assert "spec.tls cannot be added to a running cluster" in said
    home.do("stop", "shop")
    said = home.refuse("get", "shop", "orders", "1")
    assert "shop is stopped: start it with `qsync start shop` (NotReady)" in said
    assert "+ spec.tls: {clients: Accept}\n" in home.do("diff", "-f", encrypted)
    home.do("apply", "-f", encrypted)
    assert home.do("diff", "-f", encrypted).endswith("unchanged\n")
    home.do("stop", "shop")
    plain = manifest(tmp_path, {"replicas": 1, "spaces": SPACES})
    assert "- spec.tls: {clients: Accept}\n" in home.do("apply", "-f", plain, "--dry-run")
    home.do("start", "shop")
    found = credentials(home)
    login = ("--user", "app", "--password", found["password"])
    # `Accept` is the default: clients may use TLS.
    home.do("put", found["addresses"][0], "orders", '[1, "tea"]', *login)
    assert "tea" in home.do(
        "get", found["tlsAddresses"][0], "orders", "1", *login, "--ca", found["caFile"]
    )
    assert "the port has no TLS" in home.refuse(
        "get", found["addresses"][0], "orders", "1", *login, "--ca", found["caFile"]
    )


def served(address: str) -> x509.Certificate:
    """Return the certificate that a member presents."""
    host, _, port = address.rpartition(":")
    pem = ssl.get_server_certificate((host, int(port)), timeout=5)
    return x509.load_pem_x509_certificate(pem.encode())


def test_a_certificate_is_renewed_without_a_restart(home: Home, tmp_path: Path) -> None:
    home.do("apply", "-f", manifest(tmp_path, {"replicas": 1, "tls": {"clients": "Require"}}))
    address, pids = credentials(home)["tlsAddresses"][0], home.node_pids("shop")
    folder = home.directory / "shop" / "tls"
    authority = CertificateAuthority(**json.loads((folder / "authority.json").read_text()))
    # Two thirds of the validity have passed.
    then = datetime.now(UTC) - CERTIFICATE_LIFE + timedelta(days=1)
    _, old = renew(authority, None, "shop", member_names("shop"), then)
    CertificateFiles(folder).write(old)

    def until(is_wanted: bool) -> None:
        deadline_s = time.monotonic() + 40
        soon = datetime.now(UTC) + timedelta(days=30)
        while (served(address).not_valid_after_utc < soon) is not is_wanted:
            assert time.monotonic() < deadline_s, home.logs()
            time.sleep(0.2)  # between two polls: the supervisor renews without an event

    until((folder / "tls.crt").read_text() == old.certificate)
    until(False)
    assert home.node_pids("shop") == pids
    home.do("status", "shop", "--check")


def test_a_given_certificate_is_used_or_refused(home: Home, tmp_path: Path) -> None:
    spec = {"replicas": 1, "tls": {"clients": "Require", "secretName": "company"}}
    said = home.refuse("apply", "-f", manifest(tmp_path, spec))
    assert "Secret company of spec.tls.secretName not found" in said
    other = CertificateFiles(tmp_path / "company")
    other.reconcile("shop", member_names("shop"))
    bundle = other.bundle()
    assert bundle is not None
    path = manifest(tmp_path, spec)
    keys = {"ca.crt": bundle.authorities, "tls.crt": bundle.certificate, "tls.key": bundle.key}
    secret = {"kind": "Secret", "metadata": {"name": "company"}, "stringData": keys}
    path.write_text(f"{path.read_text()}---\n{yaml.safe_dump(secret)}")
    home.do("apply", "-f", path)
    wanted = x509.load_pem_x509_certificate(bundle.certificate.encode())
    assert served(credentials(home)["tlsAddresses"][0]) == wanted
