"""Files of one local cluster, under `$QSYNC_HOME/NAME`.

    cluster.json      the manifest; commands write it, as kubectl writes to the API server
    secrets.json      passwords (mode 0600)
    manifest-secrets.json  Secrets of the manifest, of users and of TLS (mode 0600)
    tls/              authority and certificate of the members, if the manifest has `tls`
    state.json        the supervisor's durable state: uuids, members, ports, processes
    status.json       the last status that the supervisor published
    events.jsonl      events
    supervisor.lock   held while a supervisor runs
    page.json         port and token of the web page (mode 0600)
    journals.json     the declared journals
    brokers.json      ports and processes of the brokers of journals
    brokers/MEMBER/   broker.yaml, broker.log and data/
    brokers-tls/      authority and certificate of the brokers
    nodes/MEMBER/     node.yaml, node.log and data/
    retired/          disks of removed members, if `storage.retention` is Retain
    retained.json     the last manifest of a deleted cluster whose data is kept

A file is replaced as a whole, by rename of a synced one: a reader sees the old or the new content.
"""

import contextlib
import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

# Modules, not their names: the command line then loads the models only if it reads documents.
from qsync_operator.api import cluster as clusters
from qsync_operator.api import journals, status
from qsync_operator.api.catalogue import events

if TYPE_CHECKING:
    from qsync_operator.api.cluster import QsyncCluster
    from qsync_operator.api.journals import QsyncJournal
    from qsync_operator.api.status import ClusterStatus

EVENTS_BYTES_MAX = 1 << 20


def home() -> Path:
    """Return the directory of all clusters: `$QSYNC_HOME`, or `qsync` in the user's data folder."""
    given = os.environ.get("QSYNC_HOME")
    if given:
        return Path(given).expanduser().absolute()
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser() / "qsync"


@dataclass(slots=True)
class MemberRecord:
    """The ports and the process of one member."""

    kind: str
    iproto: int
    admin: int
    tls: int = 0
    role: str = ""  # replaces the kind of an anonymous member that was registered
    uuid: str = ""
    pid: int = 0
    started: str = ""
    applied: dict[str, Any] = field(default_factory=dict)
    restarted: str = ""  # annotation restartedAt with which the process was started


@dataclass(slots=True)
class BrokerRecord:
    """The ports and the process of one broker of journals."""

    http: int
    peer: int
    pid: int = 0
    started: str = ""


@dataclass(frozen=True, slots=True)
class Declaration:
    """A declared journal, and what became of its last apply.

    Attributes:
        journal: the declaration.
        result: `created`, `configured` or `unchanged`, or "" before the supervisor has processed
            it.
        refusal: why the cluster refuses it, or "".
    """

    journal: "QsyncJournal"
    result: str = ""
    refusal: str = ""

    @property
    def is_pending(self) -> bool:
        return not self.result


@dataclass(slots=True)
class SupervisorState:
    """State that must survive a killed supervisor."""

    replicaset_uuid: str = ""
    bootstrap_member: str = ""
    bootstrap_uuid: str = ""
    is_formed: bool = False
    members: dict[str, MemberRecord] = field(default_factory=dict)
    fenced: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PageAddress:
    """The port of the web page, and the token that its first address contains."""

    port: int
    token: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/?token={self.token}"


@dataclass(frozen=True, slots=True)
class Secrets:
    """Passwords. `cluster` is the cluster secret, from which the password of `admin` is derived."""

    cluster: str
    username: str
    password: str


@dataclass(frozen=True, slots=True)
class ManifestFacts:
    """The part of a manifest that verbs on rows need.

    Attributes:
        is_hibernated: whether its members are stopped.
        has_archive: whether it has an archive.
        password_secrets: names of the Secrets with passwords, by user.
    """

    is_hibernated: bool
    has_archive: bool
    password_secrets: dict[str, str]


class DamagedFileError(OSError):
    """A file of a cluster has other content than the supervisor or a command wrote."""

    def __init__(self, path: Path, cause: Exception) -> None:
        """Describe the damage.

        Args:
            path: the file.
            cause: the error of its content.
        """
        line = str(cause).partition("\n")[0] or type(cause).__name__
        super().__init__(errno.EINVAL, f"it is damaged ({line})", str(path))

    def __str__(self) -> str:
        return f"cannot use {self.filename}: {self.strerror}; restore it from a copy"


class ClusterFiles:
    """The files of one cluster."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.name = directory.name

    @property
    def supervisor_log(self) -> Path:
        return self.directory / "supervisor.log"

    def node_directory(self, member: str) -> Path:
        return self.directory / "nodes" / member

    def data_directory(self, member: str) -> Path:
        return self.node_directory(member) / "data"

    @property
    def certificates(self) -> Path:
        return self.directory / "tls"

    @property
    def has_tls(self) -> bool:
        """Return whether members use TLS."""
        return self.certificates.is_dir()

    def set_tls(self, is_used: bool) -> None:
        """Decide whether members use TLS. Members of one cluster must not differ in that."""
        if is_used:
            self.certificates.mkdir(mode=0o700, parents=True, exist_ok=True)
        else:
            shutil.rmtree(self.certificates, ignore_errors=True)

    @property
    def broker_certificates(self) -> Path:
        """Return the directory of the brokers' certificate, which members with TLS share."""
        return self.certificates if self.has_tls else self.own_broker_certificates

    @property
    def own_broker_certificates(self) -> Path:
        return self.directory / "brokers-tls"

    def exists(self) -> bool:
        return (self.directory / "cluster.json").exists()

    # --- documents --------------------------------------------------------------------------

    def load_cluster(self) -> "QsyncCluster | None":
        return self._load_manifest("cluster.json")

    def load_facts(self) -> ManifestFacts | None:
        """Return a part of the manifest, without the models, whose import takes long.

        The manifest was validated when it was saved.
        """
        document = self._read("cluster.json")
        if document is None:
            return None
        with self._understanding("cluster.json"):
            spec = document["spec"]
            users = {one["name"]: one["passwordSecret"] for one in spec.get("users", ())}
            return ManifestFacts(
                is_hibernated=bool(spec.get("hibernate")),
                has_archive=spec.get("archive") is not None,
                password_secrets=users,
            )

    def load_retained(self) -> "QsyncCluster | None":
        """Return the last manifest of a deleted cluster whose data is kept."""
        return self._load_manifest("retained.json")

    def _load_manifest(self, name: str) -> "QsyncCluster | None":
        document = self._read(name)
        if document is None:
            return None
        with self._understanding(name):
            return _as_cluster(document)

    def save_cluster(self, cluster: "QsyncCluster") -> None:
        document = cluster.document()
        document.pop("status", None)
        self._write("cluster.json", document)

    def cluster_changed_at_ns(self) -> int:
        return self._changed_at_ns("cluster.json")

    def journals_changed_at_ns(self) -> int:
        """Return when the declared journals were last written; 0 if never."""
        return self._changed_at_ns("journals.json")

    def _changed_at_ns(self, name: str) -> int:
        try:
            return (self.directory / name).stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def load_status(self) -> "ClusterStatus":
        """Return the last status, or an empty one if there is none or a power failure damaged it.

        It is not synced to disk, because the supervisor publishes another one soon.
        """
        try:
            return status.ClusterStatus.model_validate(self._read("status.json") or {})
        except (ValueError, DamagedFileError):
            return status.ClusterStatus()

    def save_status(self, status: "ClusterStatus") -> None:
        self._write("status.json", status.model_dump(mode="json", by_alias=True), is_synced=False)

    def load_state(self) -> SupervisorState:
        document = self._read("state.json") or {}
        with self._understanding("state.json"):
            members = {k: MemberRecord(**v) for k, v in document.pop("members", {}).items()}
            return SupervisorState(members=members, **document)

    def save_state(self, state: SupervisorState) -> None:
        self._write("state.json", asdict(state))

    def load_brokers(self) -> dict[str, BrokerRecord]:
        document = self._read("brokers.json") or {}
        with self._understanding("brokers.json"):
            return {name: BrokerRecord(**fields) for name, fields in document.items()}

    def save_brokers(self, brokers: dict[str, BrokerRecord]) -> None:
        self._write("brokers.json", {name: asdict(one) for name, one in brokers.items()})

    def load_journals(self) -> list[Declaration]:
        """Return the declared journals."""
        found = self._read("journals.json") or []
        with self._understanding("journals.json"):
            return [_declaration(fields) for fields in found]

    def save_journals(self, declarations: list[Declaration]) -> None:
        """Replace the declared journals; both who applies and the supervisor hold `editing`."""
        self._write(
            "journals.json",
            [
                {"journal": one.journal.document(), "result": one.result, "refusal": one.refusal}
                for one in declarations
            ],
        )

    def load_secrets(self) -> Secrets | None:
        document = self._read("secrets.json")
        if document is None:
            return None
        with self._understanding("secrets.json"):
            return Secrets(**document)

    def save_secrets(self, secrets: Secrets) -> None:
        self._write("secrets.json", asdict(secrets))

    def load_manifest_secrets(self) -> dict[str, dict[str, str]]:
        """Return the values of the Secrets that the manifest names."""
        return self._read("manifest-secrets.json") or {}

    def save_manifest_secrets(self, secrets: dict[str, dict[str, str]]) -> None:
        self._write("manifest-secrets.json", secrets)

    def load_page(self) -> PageAddress | None:
        """Return the address of the web page; None if there is none, or its file is damaged."""
        try:
            document = self._read("page.json")
            return PageAddress(**document) if document is not None else None
        except (TypeError, DamagedFileError):
            return None

    def save_page(self, address: PageAddress) -> None:
        self._write("page.json", asdict(address))

    def _read(self, name: str) -> Any:
        try:
            text = (self.directory / name).read_bytes()
        except FileNotFoundError:
            return None
        with self._understanding(name):
            return json.loads(text)

    @contextlib.contextmanager
    def _understanding(self, name: str) -> Iterator[None]:
        """Raise DamagedFileError if the content of a file is not understood."""
        try:
            yield
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DamagedFileError(self.directory / name, error) from error

    def _write(self, name: str, document: object, is_synced: bool = True) -> None:
        write_whole(
            self.directory / name, json.dumps(document, indent=1) + "\n", is_synced=is_synced
        )

    # --- events -----------------------------------------------------------------------------

    def add_event(self, reason: str, subject: str, message: str) -> None:
        path = self.directory / "events.jsonl"
        if path.exists() and path.stat().st_size > EVENTS_BYTES_MAX:
            path.replace(path.with_suffix(".old.jsonl"))
        event = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "type": events.event_type(reason),
            "reason": reason,
            "object": subject,
            "message": message,
        }
        with path.open("a+b") as file:
            # A full disk or a power failure may have left a part of a line.
            is_torn = file.tell() > 0 and _last_byte(file) != b"\n"
            file.write(b"\n" * is_torn + json.dumps(event).encode() + b"\n")

    def load_events(self) -> list[dict[str, str]]:
        """Return the events of the current file and of the one before it, oldest first."""
        path = self.directory / "events.jsonl"
        lines: list[str] = []
        for one in (path.with_suffix(".old.jsonl"), path):
            with contextlib.suppress(FileNotFoundError):
                lines += one.read_text(errors="replace").splitlines()
        return events_of(lines)

    # --- locks ------------------------------------------------------------------------------

    def try_lock(self, name: str) -> IO[str] | None:
        """Take a lock until the file is closed or the process ends; None if it is held already."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = (self.directory / name).open("a")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            return None
        return file

    @contextlib.contextmanager
    def editing(self) -> Iterator[None]:
        """Serialize changes of the manifest between commands."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self.directory / "edit.lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def is_supervised(self) -> bool:
        """Return whether the lock is held; never recreate a deleted directory."""
        try:
            file = (self.directory / "supervisor.lock").open("r+")
        except FileNotFoundError:
            return False
        with file:
            try:
                # Shared: commands that look at the same time must not take each other for it.
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return True
        return False

    def supervisor_pid(self) -> int:
        """Return the pid of the running supervisor, or else of the last one; 0 if unknown."""
        try:
            return int((self.directory / "supervisor.lock").read_text() or 0)
        except (FileNotFoundError, ValueError):
            return 0

    # --- removal ----------------------------------------------------------------------------

    def retire(self, member: str, is_kept: bool) -> None:
        """Move a removed member's files to `retired`, or delete them."""
        directory = self.node_directory(member)
        if not directory.exists():
            return
        if not is_kept:
            shutil.rmtree(directory)
            return
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
        target = self.directory / "retired"
        target.mkdir(exist_ok=True)
        directory.rename(target / f"{member}-{stamp}-{os.urandom(2).hex()}")

    def forget(self, keeps_data: bool) -> None:
        """Delete the cluster; kept data is found again when a cluster of that name is applied."""
        if not keeps_data:
            self._delete()
            return
        (self.directory / "status.json").unlink(missing_ok=True)
        if self.exists():
            (self.directory / "cluster.json").replace(self.directory / "retained.json")

    def _delete(self) -> None:
        """Delete all files, in an order that lets the next supervisor continue after a kill.

        While the manifest exists, a command that sees no lock starts a supervisor.
        """
        last = {"cluster.json", "secrets.json", "edit.lock", "supervisor.lock"}
        for path in sorted(self.directory.glob("*")):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name not in last:
                path.unlink(missing_ok=True)
        (self.directory / "cluster.json").unlink(missing_ok=True)
        shutil.rmtree(self.directory, ignore_errors=True)


def _as_cluster(document: object) -> "QsyncCluster":
    """Return the cluster of a stored manifest.

    Raises:
        ValueError: it has mistakes, such as a field that this version does not know.
    """
    try:
        return clusters.QsyncCluster.model_validate(document)
    except ValueError as error:
        from pydantic import ValidationError  # noqa: PLC0415  # slow, for failures only

        from qsync_operator.api.mistakes import sentence_of  # noqa: PLC0415  # as above

        if not isinstance(error, ValidationError):
            raise
        raise ValueError(sentence_of(error, clusters.QsyncCluster)) from error


def _declaration(fields: dict[str, Any]) -> Declaration:
    """Return a stored declaration; earlier versions stored the journal alone."""
    if "journal" not in fields:
        return Declaration(journals.QsyncJournal.model_validate(fields), "unchanged")
    journal = journals.QsyncJournal.model_validate(fields["journal"])
    return Declaration(journal, fields["result"], fields["refusal"])


def _last_byte(file: IO[bytes]) -> bytes:
    file.seek(-1, os.SEEK_END)
    return file.read(1)


def events_of(lines: Iterable[str]) -> list[dict[str, str]]:
    """Return the events of the lines of a file; a damaged line is none."""
    found = []
    for line in lines:
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            if isinstance(event, dict):
                found.append(event)
    return found


def write_whole(path: Path, text: str, is_synced: bool = True) -> None:
    """Replace a file atomically; with `is_synced`, the content survives a power failure."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
        file.flush()
        if is_synced:
            os.fsync(file.fileno())
    temporary.replace(path)
    if is_synced:
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
