"""spec.bootstrap: the initial state of a new cluster."""

from datetime import datetime
from typing import Annotated

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from qsync_operator.api.base import SecretName, SpecModel
from qsync_operator.api.patterns import FOLDER_URL_PATTERN, URL_PATTERN

TIME_PATTERN = (
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,9})?"
    r"(Z|[-+][0-9]{2}:[0-9]{2})$"
)


def _checked_moment(value: object) -> str:
    """Return the time as text, because YAML parses a time without quotation marks."""
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    except ValueError:
        raise ValueError(
            f"invalid time {value!r}: use a form such as 2026-01-31T12:00:00Z"
        ) from None
    if moment.tzinfo is None:
        raise ValueError(f"{value} has no time zone: use a form such as 2026-01-31T12:00:00Z")
    text = moment.isoformat() if isinstance(value, datetime) else str(value)
    return text.replace("+00:00", "Z")


Moment = Annotated[
    str,
    BeforeValidator(_checked_moment),
    WithJsonSchema(
        {
            "type": "string",
            "maxLength": 40,
            "x-kubernetes-validations": [
                {
                    "rule": f"self.matches('{TIME_PATTERN}')",
                    "message": "write a time with its zone, such as 2026-01-31T12:00:00Z",
                }
            ],
        }
    ),
]


class FromArchiveSpec(SpecModel):
    """Archive from which the cluster starts. Without `toTime` and `toSignature`, the cluster gets
    all confirmed rows of the archive."""

    url: str = Field(pattern=URL_PATTERN)
    """URL of the archive of another cluster. It is only read."""
    to_time: Moment | None = None
    """Last moment that is included, by the clocks of the leaders that wrote the rows."""
    to_signature: int | None = Field(default=None, ge=0, le=2**63 - 1)
    """Last index that is included."""
    member: str | None = Field(default=None, min_length=1, max_length=63)
    """Member (name or instance UUID) whose copies are used without comparison. Without it, the
    copies of all members are compared, and the majority decides."""
    journal_store: str | None = Field(default=None, pattern=FOLDER_URL_PATTERN)
    """URL of the new cluster's own store of fragments, which ends with `/`. Persisted fragments of
    journals are copied to it. It is necessary if the archive has journals with stores."""
    credentials_secret: SecretName | None = None
    """Secret with the credentials of the store. The default is that of `archive`."""

    @model_validator(mode="after")
    def _check(self) -> "FromArchiveSpec":
        if self.to_time is not None and self.to_signature is not None:
            raise ValueError("toTime and toSignature exclude each other: set one of them")
        return self


class BootstrapSpec(SpecModel):
    """Initial state of a new cluster. It cannot change."""

    from_archive: FromArchiveSpec
    """Moment of an archive with which the cluster starts."""
