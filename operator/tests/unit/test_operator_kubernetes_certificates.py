"""How the platform stores, reads and renews the certificates of a cluster."""

import asyncio
import base64
import ssl
from datetime import UTC, datetime
from typing import Any

import pytest

from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.kubernetes import certificates as module
from qsync_operator.kubernetes.api import ApiError
from qsync_operator.kubernetes.certificates import CertificateReconciler
from qsync_operator.resources.authority import Bundle, renew
from qsync_testing.operator.fake_api import FakeApi
from qsync_testing.operator.platforms import observed, opened

KEY = ("ns", "orders")


def cluster_of(**tls: object) -> QsyncCluster:
    return QsyncCluster.model_validate(
        {
            "apiVersion": "qsync.dev/v1alpha1",
            "kind": "QsyncCluster",
            "metadata": {"name": "orders", "namespace": "ns", "uid": "cluster-uid"},
            "spec": {"tls": tls},
        }
    )


def secret_of(name: str, bundle: Bundle) -> dict[str, Any]:
    strings = {
        "ca.crt": bundle.authorities,
        "tls.crt": bundle.certificate,
        "tls.key": bundle.key,
    }
    data = {key: base64.b64encode(text.encode()).decode() for key, text in strings.items()}
    metadata = {"name": name, "namespace": "ns", "uid": "uid-secret"}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}


@pytest.mark.asyncio
async def test_the_own_authority_is_made_once_and_the_next_operator_reads_it() -> None:
    api = FakeApi()
    first = CertificateReconciler(api, KEY, "cluster-uid")
    await first.observe(cluster_of())
    assert [name for _, _, name in api.writes] == ["orders-ca", "orders-tls"]
    assert isinstance(first.context(), ssl.SSLContext)
    second = CertificateReconciler(api, KEY, "cluster-uid")
    await second.observe(cluster_of())
    assert len(api.writes) == 2
    assert second.authorities == first.authorities
    assert second.expires_s == first.expires_s > 0


@pytest.mark.parametrize("field", ["ca.crt", "ca.key", "previous.crt"])
@pytest.mark.asyncio
async def test_authority_that_cannot_be_used_is_reported(field: str) -> None:
    api = FakeApi()
    await CertificateReconciler(api, KEY, "cluster-uid").observe(cluster_of())
    api.named("Secret", "orders-ca")["data"][field] = base64.b64encode(b"nothing").decode()
    del api.objects["Secret", "ns", "orders-tls"]
    reconciler = CertificateReconciler(api, KEY, "cluster-uid")
    await reconciler.observe(cluster_of())
    assert "orders-ca" in reconciler.refusal
    assert "not PEM" in reconciler.refusal


@pytest.mark.asyncio
async def test_a_deleted_certificate_is_made_again_by_the_same_authority() -> None:
    api = FakeApi()
    before = CertificateReconciler(api, KEY, "cluster-uid")
    await before.observe(cluster_of())
    await api.delete("Secret", "ns", "orders-tls")
    after = CertificateReconciler(api, KEY, "cluster-uid")
    await after.observe(cluster_of())
    assert after.authorities == before.authorities
    assert ("Secret", "ns", "orders-tls") in api.objects


@pytest.mark.asyncio
async def test_a_named_secret_is_read_and_nothing_is_made() -> None:
    api, cluster = FakeApi(), cluster_of(secretName="mine")
    keeper = CertificateReconciler(api, KEY, "cluster-uid")
    await keeper.observe(cluster)
    assert "Secret mine of tls.secretName has no ca.crt, tls.crt or tls.key" in keeper.refusal
    # `None` would mean a cluster without TLS: orders would be sent unencrypted.
    assert keeper.context().verify_mode is ssl.CERT_REQUIRED
    assert not keeper.context().get_ca_certs()
    names = ["orders-leader", "*.orders.ns.svc"]
    _, bundle = renew(None, None, "orders", names, datetime.now(UTC))
    _, other = renew(None, None, "orders", names, datetime.now(UTC))
    api.put(secret_of("mine", Bundle(bundle.authorities, bundle.certificate, other.key)))
    keeper = CertificateReconciler(api, KEY, "cluster-uid")
    await keeper.observe(cluster)
    assert "tls.key does not belong to tls.crt" in keeper.refusal
    api.put(secret_of("mine", bundle))
    keeper = CertificateReconciler(api, KEY, "cluster-uid")
    await keeper.observe(cluster)
    assert (keeper.refusal, keeper.authorities) == ("", bundle.authorities)
    assert api.writes == []


@pytest.mark.asyncio
async def test_renewed_authority_of_a_named_secret_is_trusted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "RESYNC_AFTER_S", 0.0)
    api, cluster = FakeApi(), cluster_of(secretName="mine")
    keeper = CertificateReconciler(api, KEY, "cluster-uid")
    trusted = []
    for _ in range(2):
        names = ["orders-leader", "*.orders.ns.svc"]
        _, bundle = renew(None, None, "orders", names, datetime.now(UTC))
        api.put(secret_of("mine", bundle))
        await keeper.observe(cluster)
        assert keeper.authorities == bundle.authorities
        trusted.append(keeper.context().get_ca_certs(binary_form=True))
        assert trusted[-1] == [ssl.PEM_cert_to_DER_cert(bundle.authorities)]
    assert trusted[0] != trusted[1]


class OvertakenApi(FakeApi):
    """API server on which another operator writes each Secret right after it was read."""

    async def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        found = await super().get(kind, namespace, name)
        if found is not None:
            self.put({**found, "data": {"of": ""}})
        return found


@pytest.mark.asyncio
async def test_authority_that_another_operator_stored_meanwhile_is_not_overwritten() -> None:
    api = OvertakenApi()
    await CertificateReconciler(api, KEY, "cluster-uid").observe(cluster_of())
    api.put({**api.named("Secret", "orders-ca"), "data": {}})  # a new authority is needed
    with pytest.raises(ApiError) as refused:
        await CertificateReconciler(api, KEY, "cluster-uid").observe(cluster_of())
    assert refused.value.status == 409
    assert api.named("Secret", "orders-ca")["data"] == {"of": ""}


@pytest.mark.asyncio
@pytest.mark.parametrize("names", [["sales-leader"], ["orders-leader", "orders-leader.shop.svc"]])
async def test_certificate_of_another_cluster_is_refused(names: list[str]) -> None:
    api, cluster = FakeApi(), cluster_of(secretName="mine")
    _, bundle = renew(None, None, "orders", names, datetime.now(UTC))
    api.put(secret_of("mine", bundle))
    keeper = CertificateReconciler(api, KEY, "cluster-uid")
    await keeper.observe(cluster)
    assert "orders-leader.ns.svc" in keeper.refusal
    assert not keeper.context().get_ca_certs()


@pytest.mark.asyncio
async def test_certificate_without_a_namespace_is_used_as_before() -> None:
    """The documentation of earlier versions described such certificates."""
    api, cluster = FakeApi(), cluster_of(secretName="mine")
    _, bundle = renew(None, None, "orders", ["orders-leader", "*.orders"], datetime.now(UTC))
    api.put(secret_of("mine", bundle))
    keeper = CertificateReconciler(api, KEY, "cluster-uid")
    await keeper.observe(cluster)
    assert keeper.refusal == ""
    assert keeper.context().get_ca_certs()


class Hanging(FakeApi):
    """API server that stops answering reads once `hangs` is set."""

    hangs = False

    async def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        if self.hangs:
            await asyncio.Event().wait()
        return await super().get(kind, namespace, name)


@pytest.mark.asyncio
async def test_an_api_server_that_hangs_holds_up_no_look_at_the_members() -> None:
    api = Hanging()
    async with opened(api, cluster_of()) as (platform, _):
        api.hangs = True
        # The manifest names another Secret, so the operator must read it now.
        async with asyncio.timeout(5):
            for _ in range(3):
                await observed(platform, cluster_of(secretName="mine"))
