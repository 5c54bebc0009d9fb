"""Where a verb acts: a local cluster, one node by its address, or a cluster on Kubernetes.

Every verb takes the same options for that, so they are written down once: `@aimed` gives them to a
function that has a parameter `where`.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import update_wrapper
from pathlib import Path
from typing import Annotated, Any

import typer

from qsync_cli.options import AddressOption, CaOption, LocalOption, SecretOption

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

    @property
    def is_kubernetes(self) -> bool:
        return self.local is None and self.address is None

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


def aimed(verb: Callable[..., None]) -> Callable[..., None]:
    """Return the verb with the options of `Where` in place of its parameter `where`."""

    def run(**given: Any) -> None:
        where = Where(**{name: given.pop(name) for name in _OPTIONS})
        where.check()
        verb(where=where, **given)

    update_wrapper(run, verb)
    del run.__wrapped__  # type: ignore[attr-defined]  # set by update_wrapper
    own = inspect.signature(verb, eval_str=True)
    kept = [p for p in own.parameters.values() if p.name != "where"]
    keyword = inspect.Parameter.KEYWORD_ONLY
    added = [
        inspect.Parameter(name, keyword, default=None, annotation=annotation)
        for name, annotation in _OPTIONS.items()
    ]
    parameters = [*(p.replace(kind=keyword) for p in kept), *added]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run
