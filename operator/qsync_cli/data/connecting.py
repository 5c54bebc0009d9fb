"""The cluster of a data verb: a name, local or on Kubernetes, or the address of a member."""

import re
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from qsync_cli import clusters, targets
from qsync_cli.completion import cluster_names
from qsync_cli.data import probing
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.kubernetes import names, tunnels
from qsync_cli.local.credentials import login_of
from qsync_cli.signatures import argument, option, signed
from qsync_cli.where import (
    ContextOption,
    NamespaceOption,
    Where,
    is_plugin,
)
from qsync_client import (
    AccessDenied,
    ErrorCode,
    InvalidArgument,
    QsyncError,
    RequestFailed,
    SchemaError,
    SyncClient,
)
from qsync_local.ports import HOST

ClusterArgument = Annotated[
    str,
    typer.Argument(
        help="Cluster, local or on Kubernetes, or HOST:PORT of a member.",
        metavar="CLUSTER",
        autocompletion=cluster_names,
    ),
]
SpaceArgument = Annotated[str, typer.Argument(help="Name or id of the space.", metavar="SPACE")]
UserOption = Annotated[
    str | None,
    typer.Option("--user", help="User, by default the one of the application.", show_default=False),
]
PasswordOption = Annotated[
    str | None,
    typer.Option(
        "--password", envvar="QSYNC_PASSWORD", help="Password of the user.", show_default=False
    ),
]
CaOption = Annotated[
    Path | None,
    typer.Option(
        "--ca", envvar="QSYNC_CA", help="Certificate authority of the members, with HOST:PORT.",
        metavar="FILE", show_default=False,
    ),
]  # fmt: skip
_OPTIONS: dict[str, Any] = {
    "user": UserOption,
    "password": PasswordOption,
    "ca": CaOption,
    "namespace": NamespaceOption,
    "context": ContextOption,
}
DEADLINE_S = 10.0
_ADDRESS = re.compile(r".+:\d+")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The members and the user of a verb.

    Attributes:
        addresses: addresses of members as HOST:PORT; on Kubernetes, of tunnels to them.
        user: the user.
        password: its password.
        tls: None for plain connections.
        names: names of the members, in the order of `addresses`; empty if they are not known.
        has_archive: whether the cluster is known to have an archive.
    """

    addresses: list[str]
    user: str
    password: str
    tls: ssl.SSLContext | None = None
    names: list[str] = field(default_factory=list)
    has_archive: bool = False

    def members(self) -> list[tuple[str, str]]:
        """Return name and address of each member. A name that is not known is the address."""
        return list(zip(self.names or self.addresses, self.addresses, strict=True))


@dataclass(frozen=True, slots=True)
class ConnectionTarget:
    """The cluster and the user of a verb.

    Attributes:
        cluster: name of a cluster, or HOST:PORT.
        user: None for the user of the application, or `guest` at an address.
        password: None for the password of that user.
        ca: file of the authority that signed the certificate of the member at HOST:PORT.
        namespace: namespace on Kubernetes; None for the current one.
        context: context of the kubeconfig; None for the current one.
    """

    cluster: str
    user: str | None = None
    password: str | None = None
    ca: Path | None = None
    namespace: str | None = None
    context: str | None = None

    @property
    def is_address(self) -> bool:
        return _ADDRESS.fullmatch(self.cluster) is not None

    @property
    def is_kubernetes_chosen(self) -> bool:
        """Return whether an option or the name of the program selects Kubernetes."""
        return is_plugin() or self.namespace is not None or self.context is not None

    @property
    def is_on_kubernetes(self) -> bool:
        """Return whether the cluster is looked up on Kubernetes.

        A local cluster of this name comes first, unless an option or the name of the program
        selects Kubernetes.
        """
        if _ADDRESS.fullmatch(self.cluster):
            return False
        if self.is_kubernetes_chosen:
            return True
        return not clusters.store_of(self.cluster).exists() and names.has_kubeconfig()

    @contextmanager
    def endpoint(self) -> Iterator[Endpoint]:
        """Yield the addresses of the members; on Kubernetes, of tunnels to them.

        Raises:
            Failure: there is no such cluster, or it has no members.
        """
        if self.ca is not None and not _ADDRESS.fullmatch(self.cluster):
            raise typer.BadParameter(
                f"--ca is for HOST:PORT: omit it, because the authority of {self.cluster} is known"
            )
        if not self.is_on_kubernetes:
            yield self._direct_endpoint()
            return
        where = Where(cluster=self.cluster, namespace=self.namespace, context=self.context)
        with ExitStack() as stack:
            try:
                found = stack.enter_context(tunnels.forwarded(where))
            except Failure as failure:
                raise self._absence(failure) from failure
            is_app = self.user is None or self.user == found.username
            password = self.password or (found.password if is_app else "")
            yield Endpoint(
                found.addresses, self.user or found.username, password, found.tls,
                found.names, found.has_archive,
            )  # fmt: skip

    def _direct_endpoint(self) -> Endpoint:
        if _ADDRESS.fullmatch(self.cluster):
            tls = targets.context_of(self.ca)
            probing.check_port(self.cluster, tls, self.ca)
            return Endpoint([self.cluster], self.user or "guest", self.password or "", tls)
        return _local_endpoint(self.cluster, self.user, self.password)

    def _absence(self, failure: Failure) -> Failure:
        """Return the failure of a name that is neither local nor on Kubernetes."""
        if self.is_kubernetes_chosen:
            return failure
        local = clusters.absence_of(clusters.store_of(self.cluster))
        return Failure(local.reason, f"{local}, or on Kubernetes: {failure}")

    @contextmanager
    def connect(self) -> Iterator[SyncClient]:
        """Yield a client, and convert its errors to failures.

        Raises:
            Failure: there is no such cluster, no member answers, or a request failed.
        """
        with self.endpoint() as endpoint, self.connect_to(endpoint) as client:
            yield client

    @contextmanager
    def connect_to(self, endpoint: Endpoint) -> Iterator[SyncClient]:
        """Yield a client of an endpoint, and convert its errors to failures.

        Raises:
            Failure: no member answers, or a request failed.
        """
        with (
            self.failures(),
            SyncClient(
                endpoint.addresses,
                endpoint.user,
                endpoint.password,
                deadline_s=DEADLINE_S,
                tls=endpoint.tls,
            ) as client,
        ):
            yield client

    @contextmanager
    def failures(self) -> Iterator[None]:
        """Convert the errors of clients to failures."""
        try:
            yield
        except (SchemaError, InvalidArgument) as error:
            raise Failure(FailureReason.INVALID, str(error)) from error
        except AccessDenied as error:
            remedy = "correct --user and --password"
            if error.code == ErrorCode.ACCESS_DENIED:
                remedy = "grant the privilege to the user, or choose another one with --user"
            raise Failure(FailureReason.REFUSED, f"{error}; {remedy}") from error
        except RequestFailed as error:
            raise Failure(FailureReason.REFUSED, str(error)) from error
        except BrokenPipeError:
            raise  # of the output
        except (QsyncError, OSError) as error:
            text = f"the request to {self.cluster} failed: {error}"
            raise Failure(FailureReason.UNREACHABLE, text) from error


def on_cluster(verb: Callable[..., None]) -> Callable[..., None]:
    """Return the verb with the argument CLUSTER and the options of its user as `target`."""

    def run(*, cluster: str, **given: Any) -> None:
        options = {name: given.pop(name) for name in _OPTIONS}
        verb(target=ConnectionTarget(cluster, **options), **given)

    return signed(
        run,
        verb,
        ("target",),
        first=[argument("cluster", ClusterArgument)],
        last=[option(name, annotation) for name, annotation in _OPTIONS.items()],
    )


def _local_endpoint(cluster: str, user: str | None, password: str | None) -> Endpoint:
    store = clusters.open_store(cluster)
    clusters.ensure_supervisor(store)
    members = store.load_state().members
    ports = {name: one.tls if store.has_tls else one.iproto for name, one in members.items()}
    names_of = [name for name, port in ports.items() if port]
    addresses = [f"{HOST}:{ports[name]}" for name in names_of]
    if not addresses:
        raise Failure(
            FailureReason.NOT_READY, f"{cluster} has no members yet: retry when it is Ready"
        )
    facts = clusters.facts_of(store)
    if not any(one.pid for one in members.values()) and facts.is_hibernated:
        raise Failure(
            FailureReason.NOT_READY, f"{cluster} is stopped: start it with `qsync start {cluster}`"
        )
    # Without TLS, a verb need not load the code of certificates.
    tls = clusters.certificates_of(store).context() if store.has_tls else None
    if user is not None and password is not None:
        return Endpoint(addresses, user, password, tls, names_of, facts.has_archive)
    if user is None or user in (clusters.secrets_of(store).username, *facts.password_secrets):
        name, known = login_of(store, user)
    else:  # the database may have users that the manifest does not name
        name, known = user, ""
    return Endpoint(addresses, name, password or known, tls, names_of, facts.has_archive)
