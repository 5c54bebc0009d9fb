"""QsyncCluster: the document that `kubectl get qc NAME -o json` and `qsync ... -o json` print."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, WrapValidator, model_validator
from pydantic.alias_generators import to_camel

from qsync_operator.api.base import SpecModel, StatusModel, lenient
from qsync_operator.api.patterns import NAME_PATTERN
from qsync_operator.api.spec import ClusterSpec
from qsync_operator.api.status import ClusterStatus

GROUP, VERSION = "qsync.dev", "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

NAME_MIN = 2
"""Least length of the name of a cluster with journals: `NAME-0` has four characters."""
SHORT_NAME = (
    f"metadata.name must have at least {NAME_MIN} characters if journals are enabled: clients of"
    " Gazette accept names of brokers, such as NAME-0, from four characters"
)


class Metadata(StatusModel):
    """Fields of the object's metadata that the operator uses. Other fields are kept."""

    model_config = ConfigDict(extra="allow", alias_generator=to_camel, populate_by_name=True)

    name: str = Field(pattern=NAME_PATTERN)
    namespace: str | None = None
    uid: str | None = None
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class QsyncCluster(SpecModel):
    """A replicated cluster: specification and observed state."""

    api_version: Literal["qsync.dev/v1alpha1"]
    kind: Literal["QsyncCluster"]
    metadata: Metadata
    spec: ClusterSpec = Field(default_factory=ClusterSpec)
    status: Annotated[ClusterStatus, WrapValidator(lenient)] = Field(default_factory=ClusterStatus)

    @model_validator(mode="after")
    def _names_brokers(self) -> "QsyncCluster":
        """Refuse a name from which brokers get names that Gazette's clients do not accept.

        Raises:
            ValueError: the name has one character, and journals are enabled.
        """
        journals = self.spec.journals
        if journals is not None and journals.enabled and len(self.metadata.name) < NAME_MIN:
            raise ValueError(SHORT_NAME)
        return self

    @property
    def name(self) -> str:
        return self.metadata.name

    def document(self) -> dict[str, Any]:
        """Return the document as JSON.

        Empty fields are omitted from metadata and status; the specification includes its defaults.
        """
        shown = self.model_dump(mode="json", by_alias=True)
        for part in ("metadata", "status"):
            shown[part] = _without_empty(shown[part])
        shown["spec"] = _without_none(shown["spec"])
        return shown


def _without_none(value: object) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_none(item) for item in value]
    return value


def _without_empty(value: object) -> Any:
    shown = _without_none(value)
    return {key: item for key, item in shown.items() if item not in ({}, [])}
