"""`qsync web`: the address of the web page of a cluster."""

import http.client
import time
import webbrowser
from typing import TYPE_CHECKING, Annotated

import typer

from qsync_cli import clusters
from qsync_cli.data.connecting import ClusterArgument, ConnectionTarget
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.options import Output, OutputOption
from qsync_cli.output import print_document, say
from qsync_cli.where import ContextOption, NamespaceOption

if TYPE_CHECKING:
    from qsync_local.store import ClusterFiles, PageAddress

PATIENCE_S = 10.0
POLL_S = 0.1
ANSWER_S = 2.0
ANSWER_BYTES_MAX = 1024
NoBrowserOption = Annotated[
    bool, typer.Option("--no-browser", help="Print the address, and open no browser.")
]


def web(
    cluster: ClusterArgument,
    no_browser: NoBrowserOption = False,
    output: OutputOption = None,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
) -> None:
    """Print the address of the web page of a cluster, and open it in a browser."""
    if ConnectionTarget(cluster, namespace=namespace, context=context).is_on_kubernetes:
        raise Failure(
            FailureReason.INVALID,
            f"{cluster} is on Kubernetes, where the operator serves the page: set web.enabled of "
            "the chart qsync-operator, then run `kubectl port-forward -n qsync-system "
            "deployment/qsync-operator-web 8083` and open http://127.0.0.1:8083/",
        )
    store = clusters.open_store(cluster)
    clusters.ensure_supervisor(store)
    address = _answering(store)
    if output in (Output.json, Output.yaml):
        print_document({"cluster": cluster, "url": address.url}, output)
        return
    say(address.url)
    if not no_browser and not webbrowser.open(_url_for_arguments(address)):
        say("no browser was found: open this address in one")


def _answering(store: "ClusterFiles") -> "PageAddress":
    """Return the address once the page answers there.

    Raises:
        Failure: the supervisor serves no page.
    """
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        address = store.load_page()
        if address is not None and _answers(address.port, address.token):
            return address
        time.sleep(POLL_S)  # the supervisor announces the page only by a file
    raise Failure(
        FailureReason.TIMED_OUT,
        f"the supervisor of {store.name} serves no page: read {store.supervisor_log}; one of an "
        f"earlier version serves it after `kill {store.supervisor_pid()}` and the next command",
    )


def _answers(port: int, token: str) -> bool:
    """Return whether the page with this token answers at a port, not another program."""
    return _asked(port, f"/?token={token}", {})[0] == http.client.SEE_OTHER


def _url_for_arguments(address: "PageAddress") -> str:
    """Return an address without the token: other users see the arguments of a browser.

    The supervisor of an earlier version gives no tickets; the address then has the token.
    """
    cookie = f"qsync-{address.port}={address.token}"
    status, ticket = _asked(address.port, "/ticket", {"Cookie": cookie})
    if status != http.client.OK:
        return address.url
    return f"http://127.0.0.1:{address.port}/?ticket={ticket}"


def _asked(port: int, path: str, headers: dict[str, str]) -> tuple[int, str]:
    """Return status and text of an answer; the status is 0 without one."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read(ANSWER_BYTES_MAX).decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return 0, ""
    finally:
        connection.close()
