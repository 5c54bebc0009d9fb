"""Reads manifests: YAML of one or several documents, a QsyncCluster and its Secrets.

All mistakes of a file are reported at once, each as a sentence (`mistakes.py`).
"""

import base64
import binascii
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from qsync_broker.folders import Folders, refusal
from qsync_operator.api.cluster import API_VERSION, QsyncCluster
from qsync_operator.api.jobs import QsyncAudit, QsyncCompaction
from qsync_operator.api.journals import QsyncJournal, problem_of
from qsync_operator.api.mistakes import sentences_of

_Model = TypeVar("_Model", bound=BaseModel)

_MODELS: dict[str, type[BaseModel]] = {
    model.__name__: model for model in (QsyncCluster, QsyncJournal, QsyncAudit, QsyncCompaction)
}
STANDARD_INPUT = Path("-")
LATER_KINDS = ("QsyncAudit", "QsyncCompaction")
"""Kinds of this group that exist only on Kubernetes; a local cluster refuses them."""


class ClusterManifestError(Exception):
    """An unusable manifest; the text is one sentence for its author, or a line for each mistake.

    Attributes:
        mistakes: the sentences, without the name of the file.
    """

    def __init__(self, text: str, mistakes: list[str] | None = None) -> None:
        super().__init__(text)
        self.mistakes = mistakes or [text]


def refused(source: str, mistakes: list[str]) -> ClusterManifestError:
    """Return the error of a file with these mistakes."""
    if len(mistakes) == 1:
        return ClusterManifestError(f"{source}: {mistakes[0]}", mistakes)
    lines = "".join(f"\n  {one}" for one in mistakes)
    return ClusterManifestError(f"{source} has {len(mistakes)} mistakes:{lines}", mistakes)


@dataclass(frozen=True, slots=True)
class ClusterManifest:
    """The content of a manifest file.

    Attributes:
        cluster: the cluster, from the file or, for journals alone, the running one.
        secrets: values of each Secret.
        journals: the declared journals.
        has_cluster: whether the cluster is from the file.
    """

    cluster: QsyncCluster
    secrets: dict[str, dict[str, str]] = field(default_factory=dict)
    journals: list[QsyncJournal] = field(default_factory=list)
    has_cluster: bool = True


Existing = Callable[[str], QsyncCluster | None]
"""A function that returns a running cluster by its name, or None if there is none."""


def load_manifest(path: Path, existing: Existing | None = None) -> ClusterManifest:
    """Read a manifest file.

    Args:
        path: the file, or `-` for standard input.
        existing: finds the cluster of journals that are declared alone.

    Raises:
        ManifestError: the file cannot be read or used.
    """
    return parse_manifest(_text_of(path), _source_of(path), existing)


def _source_of(path: Path) -> str:
    return "standard input" if path == STANDARD_INPUT else str(path)


def _text_of(path: Path) -> str:
    try:
        if path != STANDARD_INPUT:
            return path.read_text()
        if sys.stdin is None:
            raise ClusterManifestError("cannot read standard input: it is closed")
        return sys.stdin.read()
    except OSError as error:
        raise ClusterManifestError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ClusterManifestError(f"{_source_of(path)} is no text: {error.reason}") from error


def checked_documents(path: Path) -> list[dict[str, Any]]:
    """Return each document of a file for Kubernetes, after a check.

    Raises:
        ClusterManifestError: the file cannot be read, or has mistakes.
    """
    source, mistakes = _source_of(path), []
    documents = list(_documents(_text_of(path), source))
    for document in documents:
        model = _MODELS.get(str(document.get("kind")))
        if model is None and document.get("kind") != "Secret":
            mistakes.append(
                f"kind {document.get('kind')!r} is not supported: apply it with kubectl"
            )
        try:
            if model is not None:
                _validated(model, document, source)
        except ClusterManifestError as error:
            mistakes += error.mistakes
    if mistakes:
        raise refused(source, mistakes)
    return documents


def parse_manifest(
    text: str, source: str = "the manifest", existing: Existing | None = None
) -> ClusterManifest:
    """Parse one QsyncCluster, and any number of Secrets and QsyncJournals.

    Args:
        text: the manifest.
        source: its name in messages.
        existing: finds the cluster of journals that are declared alone.

    Raises:
        ManifestError: the text cannot be used.
    """
    clusters: list[QsyncCluster] = []
    secrets: dict[str, dict[str, str]] = {}
    journals: list[QsyncJournal] = []
    mistakes: list[str] = []
    for document in _documents(text, source):
        kind = document.get("kind")
        try:
            if kind == "QsyncCluster":
                clusters.append(parse_cluster(document, source))
            elif kind == "Secret":
                name, values = _secret(document, source)
                secrets[name] = values
            elif kind == "QsyncJournal":
                journals.append(_validated(QsyncJournal, document, source))
            else:
                mistakes.append(_unknown_kind(kind))
        except ClusterManifestError as error:
            mistakes += error.mistakes
    if mistakes:
        raise refused(source, mistakes)
    has_cluster = bool(clusters)
    if not has_cluster and journals and existing is not None:
        name = journals[0].spec.cluster
        found = existing(name)
        if found is None:
            raise ClusterManifestError(f"{source}: QsyncCluster {name} not found: apply it first")
        clusters.append(found)
    if len(clusters) != 1:
        text = f"{source} contains {len(clusters)} QsyncClusters instead of one"
        if not clusters:
            text = f"{source} contains no QsyncCluster: add one"
        raise ClusterManifestError(text)
    spec = clusters[0].spec.journals
    if spec is not None and spec.auth_keys_secret is not None:
        raise ClusterManifestError(
            f"{source}: spec.journals.authKeysSecret is not supported by a local cluster: name a"
            " file with the keys in spec.journals.authKeysFile"
        )
    _check_journals(clusters[0], journals, source)
    return ClusterManifest(clusters[0], secrets, journals, has_cluster)


def _check_journals(cluster: QsyncCluster, journals: list[QsyncJournal], source: str) -> None:
    """Refuse journals that the cluster of the manifest cannot have."""
    if journals and (cluster.spec.journals is None or not cluster.spec.journals.enabled):
        raise ClusterManifestError(
            f"{source}: QsyncJournal {journals[0].name} needs spec.journals.enabled: true in"
            f" QsyncCluster {cluster.name}"
        )
    seen = Folders()
    for journal in journals:
        if journal.spec.cluster != cluster.name:
            raise ClusterManifestError(
                f"{source}: spec.cluster of QsyncJournal {journal.name} is"
                f" {journal.spec.cluster}, but the manifest's cluster is {cluster.name}"
            )
        found = problem_of(journal.spec)
        if journal.spec.replication > cluster.spec.replicas:
            found = (
                f"spec.replication {journal.spec.replication} needs as many voters, but"
                f" QsyncCluster {cluster.name} has {cluster.spec.replicas}: change one of them"
            )
        if found:
            raise ClusterManifestError(f"{source}: QsyncJournal {journal.name}: {found}")
        found = refusal_beside(journal, seen)
        if found:
            raise ClusterManifestError(f"{source}: {found}")
        seen.add(journal.spec.journal)


def refusal_beside(journal: QsyncJournal, others: Folders) -> str:
    """Return why a journal cannot be declared beside other journals, or ""."""
    name = journal.spec.journal
    other = others.other(name)
    if other == name:
        return f"two QsyncJournals declare the journal {name}"
    return f"QsyncJournal {journal.name}: {refusal(name, other)}" if other else ""


def _unknown_kind(kind: object) -> str:
    if kind in LATER_KINDS:
        return f"kind {kind} is not supported by a local cluster: apply it with kubectl"
    return f"kind {kind!r} is not supported: use QsyncCluster, QsyncJournal or Secret"


def _documents(text: str, source: str) -> Iterator[dict[str, Any]]:
    try:
        documents = list(yaml.safe_load_all(text))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "it cannot be parsed"
        raise ClusterManifestError(f"{source} is not valid YAML{where}: {problem}") from error
    for document in documents:
        if document is None:
            continue
        if not isinstance(document, dict):
            raise ClusterManifestError(
                f"{source} is invalid: it contains a {type(document).__name__} instead of a map"
            )
        yield document


def parse_cluster(document: dict[str, Any], source: str = "the manifest") -> QsyncCluster:
    """Validate one QsyncCluster.

    Raises:
        ManifestError: the document is not valid.
    """
    return _validated(QsyncCluster, document, source)


def _validated(model: type[_Model], document: dict[str, Any], source: str) -> _Model:
    version = document.get("apiVersion")
    if version != API_VERSION:
        raise refused(source, [f"apiVersion {version!r} is not supported: use {API_VERSION}"])
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise refused(source, sentences_of(error, model)) from error


def _secret(document: dict[str, Any], source: str) -> tuple[str, dict[str, str]]:
    """Return name and values of a Secret: `data` is in base64, `stringData` is plain text."""
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or not name:
        raise refused(source, ["metadata.name of a Secret is missing"])
    values: dict[str, str] = {}
    for key, value in (document.get("data") or {}).items():
        try:
            values[str(key)] = base64.b64decode(str(value), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError) as error:
            text = f"data.{key} of Secret {name} is not base64 text: use stringData instead"
            raise refused(source, [text]) from error
    values.update(
        {str(key): str(value) for key, value in (document.get("stringData") or {}).items()}
    )
    return name, values
