"""The leader that `qsync chaos` kills on Kubernetes, and the moment at which it may."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner, Result

from qsync_cli.failure import Failure, FailureReason
from qsync_cli.main import app
from qsync_cli.proof import chaos
from qsync_cli.proof.victims import Leadership, PodVictims
from qsync_cli.where import Where


class VictimApi:
    """The API server's answers for one cluster."""

    def __init__(self) -> None:
        self.deleted: list[tuple[str, str, str]] = []
        self.names = ["orders"]
        self.status: dict[str, object] = {"phase": "Ready", "leader": "orders-0", "term": 3}

    async def clusters(self) -> list[dict[str, object]]:
        return [{"metadata": {"name": name}, "status": self.status} for name in self.names]

    async def delete(self, kind: str, namespace: str, name: str) -> None:
        self.deleted.append((kind, namespace, name))


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> VictimApi:
    fake = VictimApi()
    session = SimpleNamespace(api=fake, clusters=fake.clusters, namespace="shop")

    def converse(where: Where, ask: Callable[[object], Awaitable[object]]) -> object:
        coroutine = ask(session).__await__()
        try:
            while True:
                next(coroutine)
        except StopIteration as end:
            return end.value

    monkeypatch.setattr("qsync_cli.kubernetes.session.converse", converse)
    return fake


def test_pod_of_the_leader_is_deleted(api: VictimApi) -> None:
    pods = PodVictims(Where(cluster="orders", namespace="shop"))
    assert pods.observe() == Leadership("orders-0", 3, is_whole=True)
    assert pods.kill("orders-0") == "pod deleted"
    assert api.deleted == [("Pod", "shop", "orders-0")]


def chaos_on_pods(ledger: Path, *words: str) -> Result:
    arguments = ["chaos", "orders", "-n", "shop", "--kill-leader", "--ledger", str(ledger), *words]
    return CliRunner().invoke(app, arguments)


def test_pods_are_killed_only_after_consent_and_nothing_is_created_before_it(
    api: VictimApi, tmp_path: Path
) -> None:
    ledger = tmp_path / "chaos.jsonl"
    refused = chaos_on_pods(ledger)
    assert isinstance(refused.exception, Failure)
    assert refused.exception.reason is FailureReason.REFUSED
    assert str(refused.exception).endswith("Nothing was changed: add --yes")
    assert api.deleted == []
    assert not ledger.exists()


def test_consent_is_asked_only_for_a_cluster_that_exists(api: VictimApi, tmp_path: Path) -> None:
    api.names = ["catalogue"]
    refused = chaos_on_pods(tmp_path / "chaos.jsonl")
    assert isinstance(refused.exception, Failure)
    assert refused.exception.reason is FailureReason.NOT_FOUND


def test_cluster_that_is_not_ready_is_not_whole(api: VictimApi) -> None:
    pods = PodVictims(Where(cluster="orders"))
    api.status = {"phase": "Degraded", "leader": "orders-0", "term": 3}
    assert not pods.observe().is_whole
    api.status = {}
    assert pods.observe() == Leadership("", 0, is_whole=False)


class ScriptedVictims:
    """A cluster whose observations are given; each is seen once, the last one always."""

    def __init__(self, *seen: Leadership) -> None:
        self.seen = list(seen)
        self.killed: list[str] = []

    def observe(self) -> Leadership:
        return self.seen.pop(0) if len(self.seen) > 1 else self.seen[0]

    def kill(self, member: str) -> str:
        self.killed.append(member)
        return "killed"


@pytest.mark.asyncio
async def test_leader_is_killed_only_while_all_members_are_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chaos, "POLL_S", 0.0)
    seen = (
        Leadership("a", 1, is_whole=False), Leadership("a", 1, is_whole=True),
        Leadership("a", 1, is_whole=True), Leadership("b", 2, is_whole=False),
        Leadership("a", 3, is_whole=True),
    )  # fmt: skip
    scripted = ScriptedVictims(*seen)
    kill = await chaos._kill_one(scripted, None)
    assert scripted.killed == ["a"]
    assert (kill.member, kill.new_leader, kill.term) == ("a", "a", 3), "it may lead again"


@pytest.mark.asyncio
async def test_cluster_that_does_not_recover_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chaos, "POLL_S", 0.0)
    monkeypatch.setattr(chaos, "SETTLE_S", 0.05)
    scripted = ScriptedVictims(Leadership("a", 1, is_whole=True))
    with pytest.raises(Failure, match="not all members are up"):
        await chaos._kill_one(scripted, None)
    assert scripted.killed == ["a"]
