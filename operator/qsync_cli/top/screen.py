"""`qsync top`: the screen and the keys. A thread observes the cluster, so that keys never wait."""

import os
import queue
import select
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import rich.console
import rich.live
import typer

from qsync_cli import clusters
from qsync_cli.data.connecting import ClusterArgument, ConnectionTarget
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.top import sources
from qsync_cli.top.view import draw
from qsync_cli.where import ContextOption, NamespaceOption, Where
from qsync_operator.views.live import LiveModel, LiveSample

LOCAL_S, KUBERNETES_S = 1.0, 3.0
"""Seconds between two observations."""
REDRAW_S = 0.2
"""Seconds after which a new size of the terminal is noticed at the latest."""
QUIT = (b"q", b"Q", b"\x03", b"\x04")
FoundSamples = queue.SimpleQueue[LiveSample | Failure]
IntervalOption = Annotated[
    float | None,
    typer.Option(
        "--interval", help="Seconds between two observations.", min=0.2, show_default=False
    ),
]


def top(
    cluster: ClusterArgument,
    interval: IntervalOption = None,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
) -> None:
    """Show members, latencies and failovers of a cluster, live. `q` quits."""
    if not sys.stdin.isatty() or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        raise Failure(
            FailureReason.INVALID,
            "cannot open the live view: standard input and output must be a terminal; run `qsync "
            "status --watch -o json` for other programs",
        )
    target = ConnectionTarget(cluster, namespace=namespace, context=context)
    if target.is_on_kubernetes:
        where = Where(cluster=cluster, namespace=namespace, context=context)
        observe(lambda: sources.observe_kubernetes(where), interval or KUBERNETES_S)
    else:
        clusters.ensure_supervisor(clusters.open_store(cluster))
        observe(lambda: sources.observe_local(cluster), interval or LOCAL_S)


def observe(sample: Callable[[], LiveSample], interval_s: float) -> None:
    """Show observations until a key ends the view.

    Raises:
        Failure: the first observation fails. Later failures are shown, and the view continues.
    """
    model = LiveModel()
    model.add(sample())
    found: FoundSamples = queue.SimpleQueue()
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(interval_s):
            try:
                found.put(sample())
            except Failure as failure:
                found.put(failure)
            except Exception as error:  # noqa: BLE001  # else the view would show old figures
                text = f"the observation failed: {error}"
                found.put(Failure(FailureReason.FAILED, text))

    threading.Thread(target=repeat, name="observe", daemon=True).start()
    try:
        with _keys() as is_ended:
            _show(model, found, is_ended)
    finally:
        ended.set()


def _show(model: LiveModel, found: FoundSamples, is_ended: Callable[[], bool]) -> None:
    console = rich.console.Console(highlight=False)
    trouble = ""
    with rich.live.Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            size = os.get_terminal_size()
            lines = draw(model, size.columns, size.lines, trouble)
            console.size = rich.console.ConsoleDimensions(size.columns, size.lines)
            live.update(rich.console.Group(*lines), refresh=True)
            if is_ended():
                return
            while not found.empty():
                sample = found.get()
                trouble = str(sample) if isinstance(sample, Failure) else ""
                if isinstance(sample, LiveSample):
                    model.add(sample)


@contextmanager
def _keys() -> Iterator[Callable[[], bool]]:
    """Yield a function that waits up to `REDRAW_S` for a key, and returns whether it ends the view.

    The terminal is restored at the end, also after an error.
    """
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def is_ended() -> bool:
        if not select.select([terminal], [], [], REDRAW_S)[0]:
            return False
        keys = os.read(terminal, 64)
        return not keys or any(key in keys for key in QUIT)

    try:
        tty.setcbreak(terminal)
        yield is_ended
    except KeyboardInterrupt:
        return
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
