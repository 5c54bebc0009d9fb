"""Identity and credentials of a cluster when Secrets are deleted, damaged or changed."""

import base64
from typing import Any, cast

import pytest

from qsync_operator.kubernetes import platform as kubernetes
from qsync_operator.kubernetes.api import ApiError
from qsync_operator.kubernetes.cache import Cache
from qsync_operator.kubernetes.identity import ClusterIdentity
from qsync_operator.kubernetes.platform import KubernetesPlatform
from qsync_operator.manager.clusters import Clusters
from qsync_operator.members.access import bring, differing, password_of
from qsync_operator.members.iproto import IprotoConnection
from qsync_operator.plan.actions import CreateMember, RecordBootstrap, RecordFormed
from qsync_operator.reconcile.platform import ActionRefused
from qsync_operator.resources.secrets import text_of
from qsync_testing.operator.catalogue import AccessCatalogue
from qsync_testing.operator.fake_api import FakeApi
from qsync_testing.operator.platforms import (
    IMAGE,
    cluster_of,
    document_of,
    keep,
    observed,
    opened,
    settled,
)

IDENTITY, APP = ("Secret", "ns", "orders-identity"), ("Secret", "ns", "orders-app")


async def formed(api: FakeApi, **spec: object) -> None:
    cluster = cluster_of(**spec)
    async with opened(api, cluster) as (platform, _):
        for number in range(3):
            await platform.act(cluster, CreateMember(f"orders-{number}", "voter"))
        await platform.act(cluster, RecordBootstrap("orders-0", "i0"))
        await platform.act(cluster, RecordFormed())
        await keep(platform, cluster, await observed(platform, cluster))


@pytest.fixture
def looks_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes, "RESYNC_AFTER_S", -1.0)


def secret_of(name: str, **values: bytes) -> dict[str, Any]:
    data = {key: base64.b64encode(value).decode() for key, value in values.items()}
    metadata = {"name": name, "namespace": "ns"}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}


# --- identity -------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_no_second_identity_is_made_while_the_first_ones_members_are_there() -> None:
    """The operator starts after the Secret was deleted.

    A second identity would stop all members.
    """
    api = FakeApi()
    await formed(api)
    del api.objects[IDENTITY]
    api.writes.clear()
    with pytest.raises(ActionRefused, match="is missing, but StatefulSet orders exists"):
        await KubernetesPlatform.open(api, Cache(), cluster_of(), IMAGE)
    assert not api.writes
    # The same holds if only volumes of a deleted cluster remain.
    template = api.objects.pop(("StatefulSet", "ns", "orders"))
    labels = template["metadata"]["labels"]
    metadata = {"name": "data-orders-0", "namespace": "ns", "labels": labels}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata}
    api.put(claim)
    with pytest.raises(ActionRefused, match="PersistentVolumeClaim data-orders-0 exists"):
        await KubernetesPlatform.open(api, Cache(), cluster_of(), IMAGE)
    api.put({**claim, "metadata": {**metadata, "deletionTimestamp": "now"}})
    await (await KubernetesPlatform.open(api, Cache(), cluster_of(), IMAGE)).close()


@pytest.mark.asyncio
async def test_identity_that_is_being_deleted_is_not_used() -> None:
    api = FakeApi()
    await formed(api)
    leaving = api.named("Secret", "orders-identity")
    leaving["metadata"]["deletionTimestamp"] = "now"
    api.put(leaving)
    with pytest.raises(ActionRefused, match="waiting for the deletion of Secret orders-identity"):
        await KubernetesPlatform.open(api, Cache(), cluster_of(), IMAGE)


@pytest.mark.asyncio
async def test_an_operator_that_knows_it_puts_the_identity_back(looks_always: None) -> None:
    api, cluster = FakeApi(), cluster_of()
    await formed(api)
    before = api.named("Secret", "orders-identity")["data"]
    async with opened(api, cluster) as (platform, _):
        observe = await observed(platform, cluster)
        del api.objects[IDENTITY]
        await platform._poll(cluster)
        assert await keep(platform, cluster, observe) == ()
        assert api.named("Secret", "orders-identity")["data"] == before
        # An action before the next poll is refused, and recreates the Secret as well.
        del api.objects[IDENTITY]
        with pytest.raises(ActionRefused):
            await platform.act(cluster, CreateMember("orders-3", "voter"))
        assert api.named("Secret", "orders-identity")["data"] == before
        await platform.act(cluster, CreateMember("orders-3", "voter"))
    assert api.named("StatefulSet", "orders")["spec"]["replicas"] == 4


@pytest.mark.asyncio
@pytest.mark.parametrize(("first", "then"), [("Delete", "Retain"), ("Retain", "Delete")])
async def test_what_belongs_to_the_data_goes_and_stays_with_it(
    first: str, then: str, looks_always: None
) -> None:
    api = FakeApi()
    await formed(api, storage={"retention": first})
    changed = cluster_of(storage={"retention": then})
    async with opened(api, changed) as (platform, _):
        await platform._poll(changed)
        assert await keep(platform, changed, await observed(platform, changed)) == ()
        identity = api.named("Secret", "orders-identity")["metadata"]
        assert bool(identity.get("ownerReferences")) == (then == "Delete")
        # The Secret with the application's password was applied as well.
        assert ("apply", "Secret", "orders-app") in api.writes
        writes = len(api.writes)
        await platform._poll(changed)
        assert await keep(platform, changed, await observed(platform, changed)) == ()
        assert len(api.writes) == writes


@pytest.mark.asyncio
async def test_identity_gets_no_owner_before_the_volumes_are_deleted_with_the_cluster(
    looks_always: None,
) -> None:
    """A cluster that is deleted in between would lose its identity and keep its volumes."""
    api = FakeApi()
    await formed(api, storage={"retention": "Retain"})
    changed = cluster_of(storage={"retention": "Delete"})

    def owners() -> object:
        return api.named("Secret", "orders-identity")["metadata"].get("ownerReferences")

    async with opened(api, changed) as (platform, _):
        await platform._poll(changed)
        assert not owners()
        api.refusing = {"StatefulSet": 422}
        (trouble,) = await keep(platform, changed, await observed(platform, changed))
        assert trouble.is_essential
        assert not owners()


@pytest.mark.asyncio
async def test_identity_that_is_being_deleted_gets_no_other_owner() -> None:
    api, cluster = FakeApi(), cluster_of(storage={"retention": "Retain"})
    await formed(api, storage={"retention": "Delete"})
    async with opened(api, cluster) as (platform, _):
        api.named("Secret", "orders-identity")["metadata"]["deletionTimestamp"] = "now"
        api.writes.clear()
        await platform._identity.apply_retention(cluster)
    assert api.writes == []


@pytest.mark.asyncio
async def test_change_of_the_owner_overwrites_no_state_of_another_operator() -> None:
    """The earlier operator's last write may arrive after its successor read the identity."""
    api = FakeApi()
    await formed(api, storage={"retention": "Retain"})
    before, changed = (cluster_of(storage={"retention": how}) for how in ("Retain", "Delete"))
    earlier, later = [await ClusterIdentity.open(api, changed, IMAGE) for _ in range(2)]
    await earlier.save(before, earlier.state.with_member("orders-3", "voter"))
    await later.apply_retention(changed)
    await later.save(changed, later.state.with_fenced(("orders-1",)))
    stored = (await ClusterIdentity.open(api, changed, IMAGE)).state
    assert ("orders-3" in stored.members, stored.fenced) == (True, ("orders-1",))
    assert api.named("Secret", "orders-identity")["metadata"]["ownerReferences"]


@pytest.mark.asyncio
async def test_owner_changes_only_with_the_state_that_was_read() -> None:
    api = FakeApi()
    await formed(api, storage={"retention": "Retain"})
    before, changed = (cluster_of(storage={"retention": how}) for how in ("Retain", "Delete"))
    earlier, later = [await ClusterIdentity.open(api, changed, IMAGE) for _ in range(2)]
    patch = api.patch

    async def late(kind: str, namespace: str, name: str, change: dict[str, Any]) -> dict[str, Any]:
        await earlier.save(before, earlier.state.with_member("orders-3", "voter"))
        return await patch(kind, namespace, name, change)

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(api, "patch", late)
        with pytest.raises(ApiError, match="changed meanwhile"):
            await later.apply_retention(changed)
    await later.apply_retention(changed)
    assert "orders-3" in later.state.members


@pytest.mark.asyncio
async def test_damaged_identity_ends_no_supervision_when_the_owner_changes() -> None:
    api = FakeApi()
    await formed(api, storage={"retention": "Delete"})
    changed = cluster_of(storage={"retention": "Retain"})
    async with opened(api, changed) as (platform, _):
        api.put({**api.named("Secret", "orders-identity"), "data": {}})
        (trouble,) = await keep(platform, changed, await observed(platform, changed))
    assert trouble.is_essential
    assert "cannot read Secret orders-identity" in trouble.message


@pytest.mark.asyncio
async def test_refused_creation_of_an_identity_is_no_wait_for_an_earlier_one() -> None:
    api = FakeApi()
    api.refusing = {"Secret": 403}
    with pytest.raises(ApiError):
        await KubernetesPlatform.open(api, Cache(), cluster_of(), IMAGE)


# --- clusters that cannot be reconciled -----------------------------------------------------------


@pytest.mark.asyncio
async def test_status_explains_why_a_cluster_is_unmanaged() -> None:
    api = FakeApi()
    await formed(api)
    kept = api.objects.pop(IDENTITY)
    api.put(document_of())
    clusters = Clusters(api, Cache(), IMAGE)
    await clusters.begin()

    def degraded() -> dict[str, Any]:
        conditions = api.named("QsyncCluster", "orders").get("status", {}).get("conditions", [])
        found = [one for one in conditions if one["type"] == "Degraded"]
        return found[0] if found else {}

    try:
        await clusters.on_event(document_of(), False)
        await settled(lambda: degraded().get("reason") == "Waiting")
        assert "orders-identity is missing" in degraded()["message"]
        await clusters.on_event(document_of(replicas=3), False)
        api.put(kept)
        await clusters.on_event(document_of(replicas=4), False)
        await settled(lambda: degraded().get("reason") not in (None, "Waiting"))
        assert [e["reason"] for e in api.events].count("Waiting") == 1
    finally:
        await clusters.close()


@pytest.mark.parametrize(
    "state", [b"[]", b'{"members": []}', b'{"members": {"orders-0": 1}}', b"x"]
)
@pytest.mark.asyncio
async def test_damaged_identity_is_reported_and_not_replaced(state: bytes) -> None:
    api = FakeApi()
    await formed(api)
    damaged = secret_of("x", **{"state.json": state})["data"]
    api.named("Secret", "orders-identity")["data"] |= damaged
    with pytest.raises(ActionRefused, match="restore it from a backup"):
        await KubernetesPlatform.open(api, Cache(), cluster_of(), IMAGE)


# --- passwords ------------------------------------------------------------------------------------


def test_one_value_of_a_secret_is_read_whatever_else_is_in_it() -> None:
    secret = secret_of("alice", password=b"x", keystore=b"\xff\xfe\x80")
    assert text_of(secret, "password") == "x"
    assert [text_of(secret, "keystore"), text_of(secret, "no"), text_of(None, "no")] == [None] * 3


@pytest.mark.asyncio
async def test_a_given_password_is_needed_to_found_a_cluster_and_not_to_keep_it() -> None:
    api, cluster = FakeApi(), cluster_of(auth={"passwordSecret": "mine"})
    with pytest.raises(ActionRefused, match="has no key `password`"):
        await KubernetesPlatform.open(api, Cache(), cluster, IMAGE)
    api.put(secret_of("mine", password=b"first", keystore=b"\xff"))
    await formed(api, auth={"passwordSecret": "mine"})
    assert text_of(api.named("Secret", "orders-app"), "password") == "first"
    del api.objects["Secret", "ns", "mine"]
    async with opened(api, cluster) as (platform, _):
        assert await platform._read_application_password(cluster) == "first"
        api.put(secret_of("mine", password=b"second"))
        assert await platform._read_application_password(cluster) == "second"
        assert await keep(platform, cluster, await observed(platform, cluster)) == ()
    assert text_of(api.named("Secret", "orders-app"), "password") == "second"


@pytest.mark.asyncio
async def test_given_password_that_is_lost_is_not_replaced_by_a_new_one() -> None:
    """The next turn would give the user a password that no client of the application knows."""
    api, cluster = FakeApi(), cluster_of(auth={"passwordSecret": "mine"})
    api.put(secret_of("mine", password=b"first"))
    await formed(api, auth={"passwordSecret": "mine"})
    del api.objects["Secret", "ns", "mine"], api.objects[APP]
    with pytest.raises(ActionRefused, match="has no key `password`"):
        await KubernetesPlatform.open(api, Cache(), cluster, IMAGE)


@pytest.mark.asyncio
async def test_what_is_not_watched_is_put_back_too(looks_always: None) -> None:
    api, cluster = FakeApi(), cluster_of()
    await formed(api)
    password = text_of(api.named("Secret", "orders-app"), "password")
    async with opened(api, cluster) as (platform, _):
        observe = await observed(platform, cluster)
        assert await keep(platform, cluster, observe) == ()
        del api.objects[APP], api.objects["ServiceAccount", "ns", "orders"]
        await platform._poll(cluster)
        assert await keep(platform, cluster, observe) == ()
    assert text_of(api.named("Secret", "orders-app"), "password") == password
    assert ("ServiceAccount", "ns", "orders") in api.objects


@pytest.mark.asyncio
async def test_edited_secret_is_restored(looks_always: None) -> None:
    api, cluster = FakeApi(), cluster_of()
    await formed(api)
    async with opened(api, cluster) as (platform, _):
        observe = await observed(platform, cluster)
        assert await keep(platform, cluster, observe) == ()
        before = api.named("Secret", "orders-app")["data"]["password"]
        edited = secret_of("orders-app", password=b"edited")["data"]
        api.put({**api.named("Secret", "orders-app"), "data": edited})
        await platform._poll(cluster)
        assert await keep(platform, cluster, observe) == ()
    assert api.named("Secret", "orders-app")["data"]["password"] == before


@pytest.mark.asyncio
async def test_a_field_that_is_wanted_no_more_is_applied_away() -> None:
    """A comparison does not detect the field, because only wanted fields are compared."""
    api, cluster = FakeApi(), cluster_of(bootstrap={"fromArchive": {"url": "s3://b/o"}})
    async with opened(api, cluster) as (platform, _):
        await platform.act(cluster, CreateMember("orders-0", "voter"))
        await platform.act(cluster, RecordBootstrap("orders-0", "i0"))
        assert "restore.json" in api.named("ConfigMap", "orders-config")["data"]
        api.writes.clear()
        assert await keep(platform, cluster, await observed(platform, cluster)) == ()
        assert not api.writes
        await platform.act(cluster, RecordFormed())
        assert ("apply", "ConfigMap", "orders-config") in api.writes


def test_the_applications_password_is_brought_and_its_grants_are_peoples() -> None:
    catalogue = AccessCatalogue()
    database = cast(IprotoConnection, catalogue)
    # A client dropped the user `gone`. Its grants are unknown, so it is not recreated.
    gone = [password_of("gone", "a")]
    assert differing(database, gone) == ()
    bring(database, gone)
    assert not catalogue.writes
    granted, mine = catalogue.grants("app"), [password_of("app", "a")]
    assert differing(database, mine) == ("app",)
    bring(database, mine)
    assert differing(database, mine) == ()
    assert catalogue.grants("app") == granted
