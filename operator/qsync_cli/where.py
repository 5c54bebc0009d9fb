"""Where a verb acts: a local cluster, one node by its address, or a cluster on Kubernetes.

All verbs have the grammar `qsync VERB CLUSTER [MEMBER]`, and the same options, so both are written
down once: `@aimed` gives them to a function with a parameter `where`, and `@aimed_at_member` to one
that has a parameter `member` as well.

A cluster is looked up among the local ones first. The options of Kubernetes, and the program's name
`kubectl-qsync`, select Kubernetes.
"""

import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from qsync_cli import clusters, completion
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.kubernetes import names
from qsync_cli.options import AddressOption, CaOption, LocalOption, SecretOption
from qsync_cli.signatures import option, signed

ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster", "-c", help="QsyncCluster. Optional if the namespace has only one.",
        metavar="NAME", show_default=False,
    ),
]  # fmt: skip
NamespaceOption = Annotated[
    str | None,
    typer.Option(
        "--namespace", "-n", help="Kubernetes namespace.", metavar="NAME", show_default=False
    ),
]
ContextOption = Annotated[
    str | None,
    typer.Option(
        "--context", help="Context of the kubeconfig.", metavar="NAME", show_default=False
    ),
]


@dataclass(frozen=True, slots=True)
class Where:
    """Return the cluster that the options select."""

    local: str | None = None
    address: str | None = None
    secret: str | None = None
    ca: Path | None = None
    cluster: str | None = None
    namespace: str | None = None
    context: str | None = None
    stranger: str | None = None
    """A name without an option that is not local, so it may be one on Kubernetes."""

    @property
    def is_kubernetes(self) -> bool:
        return self.local is None and self.address is None

    @property
    def is_named(self) -> bool:
        """Return whether an option names a cluster or a node."""
        return not (self.local is self.address is self.cluster is None)

    @property
    def is_kubernetes_chosen(self) -> bool:
        """Return whether an option or the name of the program selects Kubernetes."""
        options = (self.cluster, self.namespace, self.context)
        return is_plugin() or any(option is not None for option in options)

    def check(self) -> None:
        """Check the options.

        Raises:
            BadParameter: the options name two clusters.
        """
        named = [self.local is not None, self.address is not None]
        named.append(any((self.cluster, self.namespace, self.context)))
        if sum(named) > 1:
            raise typer.BadParameter(
                "--local, --address and the options of Kubernetes (--cluster, "
                "--namespace, --context) exclude each other: specify only one"
            )


_OPTIONS: dict[str, Any] = {
    "local": LocalOption,
    "address": AddressOption,
    "secret": SecretOption,
    "ca": CaOption,
    "cluster": ClusterOption,
    "namespace": NamespaceOption,
    "context": ContextOption,
}
_NameArgument = Annotated[
    str | None,
    typer.Argument(
        help="Cluster, local or on Kubernetes. Optional if there is only one.",
        metavar="CLUSTER",
        autocompletion=completion.cluster_names,
    ),
]
_FirstArgument = Annotated[
    str | None,
    typer.Argument(
        help="Cluster, local or on Kubernetes. Optional if the member suffices.",
        metavar="CLUSTER",
        autocompletion=completion.any_names,
    ),
]
_SecondArgument = Annotated[
    str | None,
    typer.Argument(
        help="Member of the cluster.", metavar="MEMBER", autocompletion=completion.member_names
    ),
]
_MEMBER = re.compile(r".+-\d+")


def is_plugin() -> bool:
    """Return whether the program was started as `kubectl qsync`."""
    return Path(sys.argv[0]).name.startswith("kubectl-")


def place_of(name: str | None, where: Where) -> Where:
    """Return the place of a cluster.

    Args:
        name: the name on the command line, or None for the only cluster.
        where: the options.

    Raises:
        Failure: the cluster is not local, and no Kubernetes is configured.
        BadParameter: the options name a cluster, too.
    """
    if name is None:
        return where if where.is_named or where.is_kubernetes_chosen else _only_one(where)
    if where.is_named:
        raise typer.BadParameter(f"{name} and the options name two clusters: omit one of them")
    if where.is_kubernetes_chosen:
        return replace(where, cluster=name)
    if clusters.is_known(name):
        return replace(where, local=name)
    if not names.has_kubeconfig():
        raise clusters.absence_of(clusters.store_of(name))
    return replace(where, cluster=name, stranger=name)


def _only_one(where: Where) -> Where:
    """Return the only local cluster, or else Kubernetes if it is configured.

    Local clusters come first, as they do for a name. A kubeconfig may be left from other work.
    """
    found = [store.name for store in clusters.all_stores()]
    if len(found) == 1:
        return replace(where, local=found[0])
    if not found:
        if names.has_kubeconfig():
            return where
        text = "there is no local cluster and no kubeconfig: run `qsync apply -f FILE`"
        raise Failure(FailureReason.NOT_FOUND, text)
    text = f"there are several local clusters, {', '.join(found)}: name one of them"
    raise Failure(FailureReason.INVALID, text)


def member_at(
    first: str | None, second: str | None, where: Where, *, is_optional: bool
) -> tuple[str | None, Where]:
    """Return the member and the place of `qsync VERB CLUSTER MEMBER`, or of `VERB MEMBER`.

    Args:
        first: the first word, a cluster or a member.
        second: the second word, a member.
        where: the options.
        is_optional: whether the verb may concern all members.

    Raises:
        Failure: the cluster or the member is not found.
        BadParameter: the member is missing.
    """
    if second is not None:
        return second, place_of(first, where)
    if first is None or where.is_named:
        if first is None and not is_optional and where.address is None:
            raise typer.BadParameter("specify CLUSTER and MEMBER")
        return first, place_of(None, where)
    if not where.is_kubernetes_chosen:
        if is_optional and clusters.store_of(first).exists():
            return None, replace(where, local=first)
        owner = clusters.owner_of(first)
        if owner is not None:
            return first, replace(where, local=owner.name)
        if clusters.store_of(first).exists():
            raise typer.BadParameter(f"{first} is a cluster: specify a member of it as well")
        if not names.has_kubeconfig():
            raise clusters.absence_of(clusters.store_of(first))
        where = replace(where, stranger=first)
    if is_optional and (
        not _MEMBER.fullmatch(first) or names.is_cluster(first, where.namespace, where.context)
    ):
        return None, replace(where, cluster=first)
    return first, where


def require_kubernetes(where: Where, verb: str, remedy: str) -> None:
    """Refuse a verb that only clusters on Kubernetes have.

    Args:
        where: the place of the cluster.
        verb: the verb.
        remedy: the command for a local cluster, as an imperative clause.

    Raises:
        Failure: the cluster is local.
        BadParameter: an address is given.
    """
    if where.address is not None:
        raise typer.BadParameter("--address cannot be used here: specify CLUSTER")
    if where.local is not None:
        text = f"`qsync {verb}` is for clusters on Kubernetes, and {where.local} is local: {remedy}"
        raise Failure(FailureReason.INVALID, text)


def aimed(verb: Callable[..., None]) -> Callable[..., None]:
    """Return the verb with CLUSTER and the options of `Where` in place of its parameter `where`."""

    def run(*, cluster_name: str | None, **given: object) -> None:
        where = _options_of(given)
        verb(where=place_of(cluster_name, where), **given)

    return signed(run, verb, ("where",), first=_arguments(cluster_name=_NameArgument), last=_LAST)


def aimed_at_member(verb: Callable[..., None]) -> Callable[..., None]:
    """Return the verb with CLUSTER, MEMBER and the options in place of `where` and `member`."""
    return _with_member(verb, is_optional=False)


def aimed_at_members(verb: Callable[..., None]) -> Callable[..., None]:
    """Return the same for a verb that concerns all members unless one is given."""
    return _with_member(verb, is_optional=True)


def _with_member(verb: Callable[..., None], *, is_optional: bool) -> Callable[..., None]:
    def run(*, cluster_name: str | None, member_name: str | None, **given: object) -> None:
        where = _options_of(given)
        member, where = member_at(cluster_name, member_name, where, is_optional=is_optional)
        verb(where=where, member=member, **given)

    first = _arguments(cluster_name=_FirstArgument, member_name=_SecondArgument)
    return signed(run, verb, ("where", "member"), first=first, last=_LAST)


def aimed_by_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Return the verb with the options alone in place of its parameter `where`."""

    def run(**given: object) -> None:
        verb(where=place_of(None, _options_of(given)), **given)

    return signed(run, verb, ("where",), last=_LAST)


def _options_of(given: dict[str, Any]) -> Where:
    """Take the options of `Where` from the parameters of a command."""
    where = Where(**{name: given.pop(name) for name in _OPTIONS})
    where.check()
    return where


def _arguments(**annotations: object) -> list[inspect.Parameter]:
    return [option(name, annotation) for name, annotation in annotations.items()]


_LAST = [option(name, annotation) for name, annotation in _OPTIONS.items()]
