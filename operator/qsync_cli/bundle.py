"""`kubectl qsync bundle`: diagnostics for support in one file, without secrets."""

import io
import json
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qsync_cli import clusters, events
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.kubernetes import session as kubernetes_session
from qsync_cli.kubernetes import status as kubernetes_status
from qsync_cli.options import OutputOption
from qsync_cli.output import done
from qsync_cli.where import Where, aimed, require_kubernetes
from qsync_operator.kubernetes import api

if TYPE_CHECKING:
    from qsync_cli.kubernetes.session import KubernetesSession

FileOption = Annotated[
    Path | None,
    typer.Option(
        "--file", help="Output file. The default is NAME-bundle.tar.gz.", show_default=False
    ),
]
LOG_LINES = 5000
KINDS = (
    "QsyncCluster", "StatefulSet", "Pod", "Service", "ConfigMap", "PodDisruptionBudget",
    "PersistentVolumeClaim",
)  # fmt: skip


@aimed
def bundle(where: Where, file: FileOption = None, output: OutputOption = None) -> None:
    """Write objects, status, events and logs to one archive, without Secrets."""
    place = clusters.store_of(where.local).directory if where.local is not None else ""
    require_kubernetes(where, "bundle", f"copy {place}, which contains its logs and its secrets")

    name, parts = kubernetes_session.converse(where, lambda session: _collect(session, where))
    path = file or Path(f"{name}-bundle.tar.gz")
    _pack(path, name, parts)
    done(f"wrote {len(parts)} files to {path}", output, file=str(path), parts=sorted(parts))


async def _collect(session: "KubernetesSession", where: Where) -> tuple[str, dict[str, str]]:
    seen = await kubernetes_status.observe(session, where)
    name = seen.name
    parts = {f"members/{member}.json": _text(status) for member, status in seen.said.items()}
    for kind in KINDS:
        labels = "" if kind == "QsyncCluster" else f"app.kubernetes.io/instance={name}"
        try:
            found = await session.api.find(kind, session.namespace, labels)
        except api.ApiError as error:
            parts[f"objects/{kind}.error"] = str(error)  # a right that this person lacks
            continue
        ours = [o for o in found if kind != "QsyncCluster" or o["metadata"]["name"] == name]
        parts[f"objects/{kind}.json"] = _text(ours)
    parts["events.json"] = _text(await events.read_events(session, where))
    for pod in seen.pods:
        member = str(pod["metadata"]["name"])
        pieces: list[bytes] = []
        try:
            async for piece in session.api.log(session.namespace, member, False, LOG_LINES):
                pieces.append(piece)
        except api.ApiError as error:
            pieces.append(str(error).encode())
        parts[f"logs/{member}.log"] = b"".join(pieces).decode(errors="replace")
    return name, parts


def _text(value: object) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def _pack(path: Path, name: str, parts: dict[str, str]) -> None:
    try:
        with tarfile.open(path, "w:gz") as archive:
            for part, text in sorted(parts.items()):
                data = text.encode()
                entry = tarfile.TarInfo(f"{name}-bundle/{part}")
                entry.size, entry.mode = len(data), 0o600
                archive.addfile(entry, io.BytesIO(data))
    except OSError as error:
        raise Failure(FailureReason.FAILED, f"cannot write {path}: {error.strerror}") from error
