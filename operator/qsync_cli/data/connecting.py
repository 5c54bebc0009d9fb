"""The cluster of a data verb: a local one by its name, or any one by the address of a member."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from qsync_cli import clusters
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.signatures import argument, option, signed
from qsync_client import (
    AccessDenied,
    InvalidArgument,
    QsyncError,
    RequestFailed,
    SchemaError,
    SyncClient,
)

ClusterArgument = Annotated[
    str, typer.Argument(help="Local cluster, or HOST:PORT of a member.", metavar="CLUSTER")
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
DEADLINE_S = 10.0
_ADDRESS = re.compile(r".+:\d+")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Addresses of members as HOST:PORT, and the user of a verb."""

    addresses: list[str]
    user: str
    password: str


@dataclass(frozen=True, slots=True)
class Target:
    """The cluster and the user of a verb.

    Attributes:
        cluster: name of a local cluster, or HOST:PORT.
        user: None for the user of the application, or `guest` at an address.
        password: None for the password of that user.
    """

    cluster: str
    user: str | None = None
    password: str | None = None

    @contextmanager
    def endpoint(self) -> Iterator[Endpoint]:
        """Yield the addresses of the members.

        Raises:
            Failure: there is no such cluster, or it has no members.
        """
        yield _endpoint(self.cluster, self.user, self.password)

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
                endpoint.addresses, endpoint.user, endpoint.password, deadline_s=DEADLINE_S
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
        except (RequestFailed, AccessDenied) as error:
            raise Failure(FailureReason.REFUSED, str(error)) from error
        except BrokenPipeError:
            raise  # of the output
        except (QsyncError, OSError) as error:
            text = f"the request to {self.cluster} failed: {error}"
            raise Failure(FailureReason.UNREACHABLE, text) from error


def on_cluster(verb: Callable[..., None]) -> Callable[..., None]:
    """Return the verb with the argument CLUSTER and the options of its user as `target`."""

    def run(*, cluster: str, user: str | None, password: str | None, **given: Any) -> None:
        verb(target=Target(cluster, user, password), **given)

    return signed(
        run,
        verb,
        "target",
        first=[argument("cluster", ClusterArgument)],
        last=[option("user", UserOption), option("password", PasswordOption)],
    )


def _endpoint(cluster: str, user: str | None, password: str | None) -> Endpoint:
    if _ADDRESS.fullmatch(cluster):
        return Endpoint([cluster], user or "guest", password or "")
    store = clusters.open_store(cluster)
    clusters.ensure_supervisor(store)
    secrets = clusters.secrets_of(store)
    members = clusters.look(store).status.members
    addresses = [member.address for member in members if not member.address.endswith(":0")]
    if not addresses:
        raise Failure(
            FailureReason.NOT_READY, f"{cluster} has no members yet: retry when it is Ready"
        )
    if user is not None and user != secrets.username:
        return Endpoint(addresses, user, password or "")
    return Endpoint(addresses, secrets.username, password or secrets.password)
