"""`qsync journals publish`: a publication, as `qsync.publish` makes it, by the admin port."""

import base64
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from qsync_cli import targets
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.journals.access import JournalArgument
from qsync_cli.options import OutputOption
from qsync_cli.output import done
from qsync_cli.where import Where, aimed_by_options

BYTES_MAX = 700 << 10
"""Size of a content whose request is as large as the admin port accepts."""
POD_BYTES_MAX = 64 << 10
"""The same on Kubernetes, where the request is an argument of a command in the pod."""
POLL_S = 5.0
"""Time for which one request waits, less than the timeout of a connection."""


@aimed_by_options
def publish(
    where: Where,
    journal: JournalArgument,
    file: Annotated[
        Path | None, typer.Argument(help="Content; without it, standard input.", show_default=False)
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until the journal has it, and print its offsets.")
    ] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", help="Longest wait in seconds.", min=0)
    ] = 60.0,
    output: OutputOption = None,
) -> None:
    """Publish a file as a whole, or standard input, and print its sequence.

    The log of the cluster has the content when the command ends. The journal has it later. If the
    outcome is unknown, a repeated command may publish twice.
    """
    content = _content(file, POD_BYTES_MAX if where.is_kubernetes else BYTES_MAX)
    target = targets.resolve(where)
    sequence, place = targets.ask(
        target, lambda links: _publish(links, target, journal, content, timeout if wait else 0)
    )
    if not wait:
        done(f"{journal} has the publication {sequence}", output, sequence=sequence)
        return
    if place["state"] != "published":
        text = f"publication {sequence} is not in {journal} after {timeout:g} s: it will follow"
        raise Failure(FailureReason.TIMED_OUT, f"{text} when the journal accepts appends")
    if "begin" not in place:
        text = f"{journal} has the publication {sequence}; its offsets are not remembered any more"
        done(text, output, sequence=sequence)
        return
    begin, end = place["begin"], place["end"]
    text = f"{journal} has the publication {sequence} at {begin} to {end}"
    done(text, output, sequence=sequence, begin=begin, end=end)


def _content(file: Path | None, most: int) -> bytes:
    """Return the content. Raises Failure if it cannot be published."""
    try:
        with sys.stdin.buffer if file is None else file.open("rb") as stream:
            content = stream.read(most + 1)
    except OSError as error:
        cause = error.strerror or str(error)
        raise Failure(FailureReason.NOT_FOUND, f"{file} cannot be read: {cause}") from None
    if not content:
        raise Failure(FailureReason.INVALID, "nothing was published: the content is empty")
    if len(content) > most:
        text = f"nothing was published: the content has more than {most >> 10} KiB; use a connector"
        raise Failure(FailureReason.INVALID, text)
    return content


async def _publish(
    links: targets.CommandLinks,
    target: targets.CommandTarget,
    journal: str,
    content: bytes,
    wait_s: float,
) -> tuple[int, dict[str, Any]]:
    """Publish at the leader, and return the sequence, and the last state of the publication."""
    leader = targets.leader_of(await targets.statuses(links, target))
    if leader is None:
        raise Failure(FailureReason.NOT_READY, "nothing was published: no member leads; retry")
    address = target.address_of(leader)
    text = base64.b64encode(content).decode()
    answer = await links.post(address, "/publish", {"journal": journal, "content": text})
    sequence = int(answer["sequence"])
    wanted = {"journal": journal, "sequence": sequence}
    deadline_s = time.monotonic() + wait_s
    place: dict[str, Any] = {"state": "pending"}
    while place["state"] != "published" and (left_s := deadline_s - time.monotonic()) > 0:
        asked = {**wanted, "timeout": min(POLL_S, left_s)}
        place = (await links.post(address, "/publication", asked))["publication"]
    return sequence, place
