"""Where a verb acts: a local cluster, one node by its address, or a cluster on Kubernetes.

Every verb takes the same options for that, so they are written down once: `@aimed` gives them to a
function that has a parameter `where`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

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

    options = [option(name, annotation) for name, annotation in _OPTIONS.items()]
    return signed(run, verb, "where", last=options)
