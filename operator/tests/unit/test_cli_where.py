"""The grammar `qsync VERB CLUSTER [MEMBER]`: words and options become a place."""

import sys
from pathlib import Path

import pytest
import typer
import yaml

from qsync_cli import completion
from qsync_cli.clusters import store_of
from qsync_cli.failure import Failure
from qsync_cli.kubernetes import names, session
from qsync_cli.where import Where, member_at, place_of
from qsync_local.store import MemberRecord, SupervisorState
from qsync_operator.api.manifest import parse_cluster
from qsync_testing.paths import EXAMPLES

READ_KUBECONFIG = names.has_kubeconfig


def found_on_kubernetes(
    kind: str, namespace: str | None, context: str | None
) -> list[tuple[str, str]]:
    """Return two clusters, of which one has a name like a member of the other, and their pods."""
    if kind == "QsyncCluster":
        return [("bills", ""), ("bills-2", "")]
    return [("bills-0", "bills"), ("bills-2-0", "bills-2"), ("operator", "")]


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Store the local cluster `orders` with two members; there is a kubeconfig."""
    monkeypatch.setenv("QSYNC_HOME", str(tmp_path))
    monkeypatch.setattr(names, "has_kubeconfig", lambda: True)
    monkeypatch.setattr(names, "_found", found_on_kubernetes)
    monkeypatch.setattr(sys, "argv", ["qsync"])
    document = yaml.safe_load((EXAMPLES / "three-nodes.yaml").read_text())
    store = store_of("orders")
    store.directory.mkdir()
    store.save_cluster(parse_cluster(document, "here"))
    members = {f"orders-{number}": MemberRecord("voter", 0, 0) for number in range(2)}
    store.save_state(SupervisorState(members=members))


def test_a_local_cluster_comes_before_one_on_kubernetes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert place_of("orders", Where()) == Where(local="orders")
    assert place_of("bills", Where()) == Where(cluster="bills", stranger="bills")
    assert place_of("orders", Where(namespace="n")) == Where(cluster="orders", namespace="n")
    monkeypatch.setattr(sys, "argv", ["/usr/bin/kubectl-qsync"])
    assert place_of("orders", Where()) == Where(cluster="orders")


def test_without_a_name_it_is_the_only_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    assert place_of(None, Where()) == Where(local="orders")
    assert place_of(None, Where(namespace="n")) == Where(namespace="n")
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("QSYNC_HOME", "/nonexistent")
        assert place_of(None, Where()) == Where()
    monkeypatch.setattr(names, "has_kubeconfig", lambda: False)
    assert place_of(None, Where()) == Where(local="orders")
    with pytest.raises(Failure, match=r"bills not found in .*: it has orders"):
        place_of("bills", Where())


def test_two_names_are_refused() -> None:
    for options in (Where(local="orders"), Where(cluster="orders"), Where(address="h:1")):
        with pytest.raises(typer.BadParameter, match="name two clusters"):
            place_of("orders", options)


@pytest.mark.parametrize(
    ("words", "options", "place"),
    [
        (("orders", "orders-0"), Where(), ("orders-0", Where(local="orders"))),
        (("orders-0", None), Where(), ("orders-0", Where(local="orders"))),
        (("orders-0", None), Where(local="orders"), ("orders-0", Where(local="orders"))),
        (("bills-0", None), Where(), ("bills-0", Where(stranger="bills-0"))),
        (("bills", "bills-0"), Where(), ("bills-0", Where(cluster="bills", stranger="bills"))),
        (("orders-0", None), Where(context="c"), ("orders-0", Where(context="c"))),
        ((None, None), Where(address="h:1"), (None, Where(address="h:1"))),
    ],
)
def test_a_member_is_found_with_its_cluster(
    words: tuple[str | None, str | None], options: Where, place: tuple[str | None, Where]
) -> None:
    assert member_at(*words, options, is_optional=False) == place
    assert member_at(*words, options, is_optional=True) == place


def test_one_word_is_a_cluster_where_the_member_is_optional() -> None:
    assert member_at("orders", None, Where(), is_optional=True) == (None, Where(local="orders"))
    for name in ("bills", "bills-2"):
        place = Where(cluster=name, stranger=name)
        assert member_at(name, None, Where(), is_optional=True) == (None, place)
    place = Where(stranger="bills-1")
    assert member_at("bills-1", None, Where(), is_optional=True) == ("bills-1", place)
    with pytest.raises(typer.BadParameter, match="specify a member"):
        member_at("orders", None, Where(), is_optional=False)
    with pytest.raises(typer.BadParameter, match="specify CLUSTER and MEMBER"):
        member_at(None, None, Where(), is_optional=False)


def test_a_name_without_an_answer_is_named_in_both_places(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nonexistent/config")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    async def no_conversation(opened: session.KubernetesSession) -> None:
        raise AssertionError(opened)

    missing = "no Kubernetes cluster is configured: /nonexistent/config does not exist"
    with pytest.raises(Failure, match=f"bills not found in .*it has orders; .*{missing}$"):
        session.converse(place_of("bills", Where()), no_conversation)
    with pytest.raises(Failure, match=f"^{missing}$"):
        session.converse(Where(namespace="n"), no_conversation)
    assert not caplog.records, "the library reports the missing file as well"


def test_retained_data_is_a_local_cluster() -> None:
    store_of("orders").forget(keeps_data=True)
    assert place_of("orders", Where()) == Where(local="orders")


def completion_context(**params: str) -> typer.Context:
    context = typer.Context(typer.main.get_command(typer.Typer(callback=lambda: None)))
    context.params.update(params)
    return context


def test_names_are_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    context = completion_context()
    assert completion.local_clusters("o") == ["orders"]
    assert completion.local_clusters("x") == []
    assert completion.cluster_names(context, "") == ["orders", "bills", "bills-2"]
    assert completion.any_names(context, "orders-1") == ["orders-1"]
    assert completion.any_names(context, "bills-") == ["bills-2", "bills-0", "bills-2-0"]
    assert completion.member_names(context, "orders") == ["orders-0", "orders-1"]
    assert completion.member_names(completion_context(cluster_name="bills"), "") == ["bills-0"]
    assert completion.member_names(completion_context(cluster_name="orders"), "b") == []
    monkeypatch.setattr(names, "has_kubeconfig", lambda: False)
    assert completion.cluster_names(context, "") == ["orders"]


@pytest.mark.parametrize(
    ("text", "is_configured"),
    [
        (None, False),
        ("apiVersion: v1\nkind: Config\n", False),
        ('apiVersion: v1\ncurrent-context: ""\n', False),
        ("apiVersion: v1\ncurrent-context: kind-kind\n", True),
        ('current-context: "kind-kind"\n', True),
    ],
)
def test_kubeconfig_without_a_context_is_none(
    text: str | None, is_configured: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    if text is not None:
        (tmp_path / ".kube").mkdir()
        (tmp_path / ".kube/config").write_text(text)
    assert READ_KUBECONFIG() is is_configured
