"""`qsync local apply`: a manifest becomes a running cluster, or changes one."""

import secrets as randomness
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qsync_broker import folders as broker_folders
from qsync_broker import keyfile
from qsync_cli import brokers, changes, clusters, statuses, waiting
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.local import access
from qsync_cli.local import journals as local_journals
from qsync_cli.options import NoWaitOption, Output, OutputOption, TimeoutOption
from qsync_cli.output import say, warn
from qsync_local import store as local_store
from qsync_node.archive.restore import child
from qsync_operator.api import base, spec
from qsync_operator.api import manifest as api_manifest
from qsync_operator.members import restore
from qsync_operator.views import statusview

if TYPE_CHECKING:
    from qsync_local.store import ClusterFiles, Declaration
    from qsync_operator.api.cluster import QsyncCluster
    from qsync_operator.api.journals import QsyncJournal
    from qsync_operator.api.manifest import ClusterManifest

FileOption = Annotated[
    Path,
    typer.Option(
        "-f",
        "--file",
        help="Manifest, or - for standard input.",
        metavar="FILE",
        show_default=False,
    ),
]
ArchiveOption = Annotated[
    str | None,
    typer.Option(
        "--archive",
        help="URL of the archive, instead of the manifest's; `none` removes it. An archive that the"
        " cluster has is kept where neither names one",
        metavar="URL",
    ),
]


DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Show the changes without making them.")
]
NO_ARCHIVE = "none"
ARCHIVE_ON_KUBERNETES = typer.BadParameter(
    "--archive is for local clusters: set spec.archive.url in the manifest"
)


def apply(
    file: FileOption,
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = 120.0,
    archive: ArchiveOption = None,
    dry_run: DryRunOption = False,
    output: OutputOption = None,
) -> None:
    """Create or update a local cluster, and wait until it is Ready."""
    manifest = manifest_of(file, archive)
    if dry_run:
        show_changes(manifest, output)
        return
    bring_up(manifest, no_wait, timeout, output)


def manifest_of(file: Path, archive: str | None) -> "ClusterManifest":
    """Return the manifest of a file, with the archive of the option or of the running cluster.

    Raises:
        Failure: the file cannot be read, or has mistakes.
    """
    try:
        manifest = api_manifest.load_manifest(
            file, lambda name: clusters.store_of(name).load_cluster()
        )
    except api_manifest.ClusterManifestError as error:
        raise Failure(FailureReason.INVALID, str(error)) from error
    if archive is None:
        return _with_kept_archive(manifest)
    if archive == NO_ARCHIVE:
        return _without_archive(manifest)
    if archive.startswith("file://") and not archive.startswith("file:///"):
        path = Path(archive.removeprefix("file://")).absolute()
        raise Failure(
            FailureReason.INVALID, f"--archive {archive!r} has no absolute path: use file://{path}"
        )
    return _with_archive(manifest, archive)


def show_changes(manifest: "ClusterManifest", output: Output | None) -> None:
    """Print the changes of an apply, and refuse the same manifests.

    Raises:
        Failure: the running cluster cannot change in this way.
    """
    wanted = manifest.cluster
    store = clusters.store_of(wanted.name)
    existing = store.load_cluster()
    given, stored = access.secrets_of(store, manifest), store.load_manifest_secrets()
    if existing is not None:
        refuse_change(store, existing, wanted)
        _add_password(store, manifest, given, stored)
    else:
        _refuse_for_retained(store, wanted)
    old = _spec_with_tls(existing, store.has_tls) if existing is not None else None
    secrets = changes.secret_changes(stored, given)
    new = _spec_with_tls(wanted, access.wants_tls(wanted))
    changes.print_changes(wanted.name, old, new, output, secrets)


def _spec_with_tls(cluster: "QsyncCluster", has_tls: bool) -> dict[str, Any]:
    """Return a specification with its defaults, but without `tls` if members do not use it."""
    found: dict[str, Any] = cluster.document()["spec"]
    if not has_tls:
        found.pop("tls", None)
    return found


def _add_password(
    store: "ClusterFiles",
    manifest: "ClusterManifest",
    given: dict[str, dict[str, str]],
    stored: dict[str, dict[str, str]],
) -> None:
    """Add the password of the application to the given and the stored Secrets."""
    name, before = manifest.cluster.spec.auth.password_secret, store.load_secrets()
    password = _given_password(manifest)
    if name is not None and password is not None and before is not None:
        given.setdefault(name, {"password": password})
        stored.setdefault(name, {"password": before.password})


def refuse_change(store: "ClusterFiles", existing: "QsyncCluster", wanted: "QsyncCluster") -> None:
    """Raise Failure if a running cluster cannot change in this way."""
    refusal = refusal_to_change(existing, wanted) or access.refusal_of_tls(store, existing, wanted)
    if refusal:
        raise Failure(FailureReason.REFUSED, f"cannot change {existing.name}: {refusal}")


def _refuse_for_retained(store: "ClusterFiles", wanted: "QsyncCluster") -> None:
    """Raise Failure if the retained data of a deleted cluster cannot become this one."""
    retained = store.load_retained()
    refusal = refusal_to_change(retained, wanted) if retained is not None else ""
    if refusal:
        raise Failure(
            FailureReason.REFUSED,
            f"cannot apply {store.name} to its retained data: {refusal}, or run `qsync destroy "
            f"{store.name} --delete-data` first",
        )


def bring_up(
    manifest: "ClusterManifest", no_wait: bool, timeout: float, output: Output | None
) -> None:
    """Store a manifest, supervise its cluster, and wait until it is Ready."""
    store = clusters.store_of(manifest.cluster.name)
    if manifest.has_cluster:
        _warn(manifest.cluster)
    if not store.exists():
        _refuse_for_retained(store, manifest.cluster)
        _check_begin(manifest.cluster)
    _check_keys(manifest.cluster)
    with store.editing():
        verb = _store(store, manifest)
        clusters.ensure_supervisor(store)
    is_document = output in (Output.json, Output.yaml)
    if not is_document:
        say(f"qsynccluster.qsync.dev/{store.name} {verb}")
    cluster = (
        clusters.observe(store) if no_wait else waiting.wait_ready(store, timeout, is_document)
    )
    if not no_wait and cluster.spec.journals is not None and not cluster.spec.hibernate:
        for one in local_journals.wait_journals(store, cluster, manifest.journals, timeout):
            if not is_document:
                say(f"qsyncjournal.qsync.dev/{one.journal.name} {one.result}")
    if is_document or not no_wait:
        statuses.print_views([statusview.view_of(cluster)], output)


def _with_kept_archive(manifest: "ClusterManifest") -> "ClusterManifest":
    """Return the archive of the command, or that of the running cluster."""
    if manifest.cluster.spec.archive is not None:
        return manifest
    store = clusters.store_of(manifest.cluster.name)
    existing = store.load_cluster() or store.load_retained()
    if existing is None or existing.spec.archive is None:
        return manifest
    url = existing.spec.archive.url
    warn(
        f"the manifest names no archive: the cluster keeps {url}; remove it with --archive "
        f"{NO_ARCHIVE}"
    )
    return _with_archive(manifest, url)


def _without_archive(manifest: "ClusterManifest") -> "ClusterManifest":
    document = _given(manifest.cluster)
    document["spec"].pop("archive", None)
    return replace(manifest, cluster=api_manifest.parse_cluster(document, "--archive"))


def _with_archive(manifest: "ClusterManifest", url: str) -> "ClusterManifest":
    document = _given(manifest.cluster)
    document["spec"].setdefault("archive", {})["url"] = url
    try:
        return replace(manifest, cluster=api_manifest.parse_cluster(document, "--archive"))
    except api_manifest.ClusterManifestError as error:
        raise Failure(FailureReason.INVALID, str(error)) from error


def _given(cluster: "QsyncCluster") -> dict[str, Any]:
    """Return the document without defaults: a given `tls` differs from an omitted one."""
    document = cluster.document()
    document["spec"] = cluster.spec.model_dump(
        mode="json", by_alias=True, exclude_unset=True, exclude_none=True
    )
    return document


def _warn(cluster: "QsyncCluster") -> None:
    for text in spec.spec_warnings(cluster.spec):
        warn(text)
    ignored = spec.without_local_meaning(cluster.spec)
    if ignored:
        warn(f"these fields have no effect on local processes: {', '.join(ignored)}")


def _store(store: "ClusterFiles", manifest: "ClusterManifest") -> str:
    """Store the manifest. Return `created`, `configured` or `unchanged`."""
    wanted, existing = manifest.cluster, store.load_cluster()
    if existing is not None and existing.metadata.deletion_timestamp is not None:
        raise Failure(
            FailureReason.NOT_READY,
            f"cannot apply {store.name}: it is being deleted; apply it again after its deletion",
        )
    declared = with_journals(store.load_journals(), manifest.journals)
    is_changed = False
    if manifest.has_cluster:
        if existing is not None:
            refuse_change(store, existing, wanted)
            _warn_of_omissions(existing, wanted)
        is_changed = _store_secrets(store, manifest)
        store.set_tls(access.wants_tls(wanted))
    if manifest.journals:
        store.save_journals(declared)
    if existing is None:
        wanted.metadata.generation = 1
        wanted.metadata.uid = _random_uuid()
        wanted.metadata.creation_timestamp = datetime.now(UTC).isoformat(timespec="seconds")
        store.save_cluster(wanted)
        return "created"
    if existing.spec.model_dump() == wanted.spec.model_dump() and not is_changed:
        return "unchanged"
    existing.spec = wanted.spec
    existing.metadata.generation += 1
    store.save_cluster(existing)
    return "configured"


def _warn_of_omissions(existing: "QsyncCluster", wanted: "QsyncCluster") -> None:
    old, new = (one.document()["spec"] for one in (existing, wanted))
    for change in changes.changes_of(old, new):
        if change.effect:
            warn(f"{change.path} is not in the manifest any more: {change.effect}")


def with_journals(
    existing: "list[Declaration]", given: "list[QsyncJournal]"
) -> "list[Declaration]":
    """Return the declared journals after an apply, which removes none, as kubectl does not.

    Args:
        existing: the declarations before.
        given: the applied journals; the supervisor declares them again.

    Raises:
        Failure: an applied journal renames one, or would share a folder with another.
    """
    names = {journal.name: journal for journal in given}
    for one in existing:
        new, old = names.get(one.journal.name), one.journal.spec.journal
        if new is not None and new.spec.journal != old:
            raise Failure(
                FailureReason.REFUSED,
                f"spec.journal of QsyncJournal {new.name} cannot change from {old}: declare"
                f" {new.spec.journal} under another name",
            )
    kept = [one for one in existing if one.journal.name not in names]
    # One that was declared may have been deleted since; the cluster knows.
    folders = broker_folders.Folders(one.journal.spec.journal for one in kept if one.is_pending)
    for journal in given:
        refusal = api_manifest.refusal_beside(journal, folders)
        if refusal:
            raise Failure(FailureReason.INVALID, refusal)
    return [*kept, *map(local_store.Declaration, given)]


def _check_begin(cluster: "QsyncCluster") -> None:
    """Refuse an archive without the requested moment before anything is created."""
    # Only who begins with an archive waits for these.

    if cluster.spec.bootstrap is None:
        return
    try:
        restore.check_restore(cluster.spec.bootstrap.from_archive)
    except child.RestoreError as error:
        raise Failure(FailureReason.INVALID, str(error)) from error


def _check_keys(cluster: "QsyncCluster") -> None:
    """Refuse keys of tokens that brokers cannot use, before anything is stored."""
    journals = cluster.spec.journals
    if journals is None or not journals.enabled or journals.auth_keys_file is None:
        return
    try:
        keyfile.KeyFile(Path(journals.auth_keys_file))
    except (OSError, ValueError) as error:
        raise brokers.unusable_keys(journals.auth_keys_file, error) from error


def refusal_to_change(old: "QsyncCluster", new: "QsyncCluster") -> str:
    """Return why a running cluster cannot change in this way, or ""."""
    if base.quantity(new.spec.storage.size) < base.quantity(old.spec.storage.size):
        return (
            f"spec.storage.size cannot shrink from {old.spec.storage.size}; restore the old value"
        )
    if new.spec.auth.username != old.spec.auth.username:
        return (
            f"spec.auth.username cannot change from {old.spec.auth.username}; restore the old value"
        )
    if new.spec.bootstrap != old.spec.bootstrap:
        return (
            "spec.bootstrap cannot change, because it describes the initial state of the "
            "cluster; restore the old value"
        )
    return ""


def _random_uuid() -> str:
    return str(uuid.uuid4())


def _store_secrets(store: "ClusterFiles", manifest: "ClusterManifest") -> bool:
    """Store the passwords and certificates of a manifest. Return whether a stored one changed."""
    found, before = access.secrets_of(store, manifest), store.load_manifest_secrets()
    is_changed = _store_passwords(store, manifest)
    if found == before:
        return is_changed
    store.save_manifest_secrets(found)
    return True


def _store_passwords(store: "ClusterFiles", manifest: "ClusterManifest") -> bool:
    """Store the application's password. Return whether a stored one changed."""
    existing, given = store.load_secrets(), _given_password(manifest)
    if existing is not None:
        if given is None or given == existing.password:
            return False
        store.save_secrets(replace(existing, password=given))
        return True
    store.save_secrets(
        local_store.Secrets(
            randomness.token_hex(24),
            manifest.cluster.spec.auth.username,
            given or randomness.token_urlsafe(24),
        )
    )
    return False


def _given_password(manifest: "ClusterManifest") -> str | None:
    name = manifest.cluster.spec.auth.password_secret
    if name is None:
        return None
    secret = manifest.secrets.get(name)
    if secret is None:
        raise Failure(
            FailureReason.NOT_FOUND,
            f"Secret {name} of spec.auth.passwordSecret not found: add it to the same file",
        )
    password = secret.get("password")
    if not password:
        raise Failure(FailureReason.INVALID, f"Secret {name} has no key `password`: add it")
    return password
