"""The base of all models: camelCase aliases, refusal of unknown fields, durations and quantities.

Durations and quantities remain the user's text, so that a document is printed as it was read.
`duration_ns` and `quantity` return the number.
"""

import functools
import re
import zoneinfo
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    JsonValue,
    ModelWrapValidatorHandler,
    ValidationError,
    WithJsonSchema,
)
from pydantic.alias_generators import to_camel

_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_DURATION = re.compile(rf"(?:{_DURATION_PART.pattern})+")
_UNITS_NS = {
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
    "d": 86400 * 10**9,
}
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P|m)?")
_SCALES = {
    "": 1, "m": 0.001, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15,
    "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50,
}  # fmt: skip
_NAME = "[a-z0-9]([-a-z0-9.]*[a-z0-9])?"
SECRET_PATTERN = f"^{_NAME}$"
SECRET_SENTENCE = "write the name of a Secret: lower-case letters, digits, hyphens and dots"
CLASS_PATTERN = f"^({_NAME})?$"
CLASS_SENTENCE = "write the name of a StorageClass, or nothing for volumes without one"
IMAGE_PATTERN = "^[A-Za-z0-9]([A-Za-z0-9._/:-]*[A-Za-z0-9_])?(@[a-z0-9]+:[0-9a-f]{32,128})?$"
IMAGE_SENTENCE = "write an image such as registry.example.com/qsync-node:0.1.0"
TIME_ZONE_PATTERN = "^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$"
TIME_ZONE_SENTENCE = "write the name of a time zone, such as Europe/Berlin or Etc/UTC"
_CRON_LIMITS = (
    ("minute", 0, 59),
    ("hour", 0, 23),
    ("day", 1, 31),
    ("month", 1, 12),
    ("weekday", 0, 7),
)
_CRON_NAMES = {
    "month": ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
    "weekday": ["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
}
_CRON_MACROS = {"@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually"}


class SpecModel(BaseModel):
    """A model of user input. Unknown fields are refused, because they are usually misspelt."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel)


class StatusModel(BaseModel):
    """A model of controller output. Unknown fields of another version are ignored."""

    model_config = ConfigDict(extra="ignore", alias_generator=to_camel, populate_by_name=True)

    def stored(self) -> dict[str, Any]:
        """Return the document for the API server, which refuses longer texts."""
        found = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        return {key: _cut(value) for key, value in found.items()}


STATUS_TEXT_MAX = 1024
"""Limit of each text of a status, in characters."""


def cut_text(text: str) -> str:
    """Return a text of a status, cut to the limit of the API server."""
    return text if len(text) <= STATUS_TEXT_MAX else f"{text[: STATUS_TEXT_MAX - 1]}…"


def _cut(value: object) -> object:
    if isinstance(value, str):
        return cut_text(value)
    if isinstance(value, list):
        return [_cut(item) for item in value]
    if isinstance(value, dict):
        return {key: _cut(item) for key, item in value.items()}
    return value


PRUNES_MAX = 1000


def lenient(value: object, read: ModelWrapValidatorHandler[Any]) -> Any:
    """Read a status, and omit the fields that another version wrote in another form.

    The next turn computes them again.

    Raises:
        ValidationError: the value is not a mapping.
    """
    for _ in range(PRUNES_MAX):
        try:
            return read(value)
        except ValidationError as error:
            first = error.errors()[0]
            if not isinstance(value, dict) or not first["loc"]:
                raise
            value = _without(value, list(first["loc"]), first["type"] == "missing")
    return read({})


def _without(value: Any, path: list[Any], is_missing: bool) -> Any:
    """Return a copy without the field of the path, or without its parent if the field is absent."""
    key, rest = path[0], path[1:]
    is_there = (
        key in value
        if isinstance(value, dict)
        else (isinstance(value, list) and isinstance(key, int) and key < len(value))
    )
    if rest and is_there and not (is_missing and len(rest) == 1):
        inner = _without(value[key], rest, is_missing)
        if isinstance(value, dict):
            return {**value, key: inner}
        return [inner if index == key else item for index, item in enumerate(value)]
    if isinstance(value, dict):
        return {name: item for name, item in value.items() if name != key}
    if isinstance(value, list):
        return [item for index, item in enumerate(value) if index != key]
    return None


def duration_ns(text: str) -> int:
    """Return the nanoseconds of a duration such as `500ms`, `5s` or `1m30s`.

    Raises:
        ValueError: the text is not a duration.
    """
    if not _DURATION.fullmatch(text):
        raise ValueError(f"invalid duration {text!r}: use a form such as 500ms, 5s or 1m30s")
    return sum(int(float(n) * _UNITS_NS[unit]) for n, unit in _DURATION_PART.findall(text))


def quantity(text: str) -> float:
    """Return the number of a Kubernetes quantity such as `10Gi` or `500m`.

    Raises:
        ValueError: the text is not a quantity.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"invalid quantity {text!r}: use a form such as 10Gi or 500m")
    return float(match.group(1)) * _SCALES[match.group(2) or ""]


def _checked_duration(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"invalid duration {value!r}: write it with its unit, such as 5s")
    duration_ns(value)
    return value


def _checked_quantity(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(f"invalid quantity {value!r}: use a form such as 10Gi or 500m")
    quantity(str(value))
    return str(value)


def _checked_schedule(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"invalid schedule {value!r}: use a form such as '15 * * * *'")
    if value in _CRON_MACROS:
        return value
    fields = value.split()
    if len(fields) != len(_CRON_LIMITS):
        raise ValueError(
            f"invalid schedule {value!r}: it has {len(fields)} fields instead of five "
            "(minute, hour, day, month, weekday)"
        )
    for text, (name, low, high) in zip(fields, _CRON_LIMITS, strict=True):
        if not all(_is_cron_item(item, name, low, high) for item in text.split(",")):
            raise ValueError(
                f"invalid schedule {value!r}: {text!r} is not a {name} between {low} and {high}"
            )
    return value


def _is_cron_item(item: str, name: str, low: int, high: int) -> bool:
    """Return whether `item` has a form such as `*`, `5`, `mon`, `1-5`, `*/15` or `1-30/2`."""
    span, slash, step = item.partition("/")
    if slash and not (step.isdigit() and 1 <= int(step) <= high):
        return False
    if span == "*":
        return True
    start, dash, end = span.partition("-")
    numbers = [_cron_number(part, name) for part in ((start, end) if dash else (start,))]
    if any(number is None or not low <= number <= high for number in numbers):
        return False
    return len(numbers) == 1 or (numbers[0] or 0) <= (numbers[1] or 0)


def _cron_number(text: str, name: str) -> int | None:
    if text.isdigit():
        return int(text)
    names = _CRON_NAMES.get(name, [])
    if text.lower() in names:
        return names.index(text.lower()) + (1 if name == "month" else 0)
    return None


def _cron_pattern() -> str:
    """Return the five fields as a pattern.

    The API server checks only the form; the model also checks the limits.
    """

    def field(names: list[str]) -> str:
        value = "|".join([r"[0-9]{1,2}", *names])
        item = rf"([*]|({value})(-({value}))?)(/[0-9]{{1,2}})?"
        return f"{item}(,{item})*"

    fields = [field(_CRON_NAMES.get(name, [])) for name, _, _ in _CRON_LIMITS]
    return f"^(@({'|'.join(sorted(m[1:] for m in _CRON_MACROS))})|(?i){' +'.join(fields)})$"


def _formed(form: str, rule: str, message: str, length_max: int = 64) -> WithJsonSchema:
    """Return the schema for the API server: a rule in CEL with its message.

    The API server reports a bare pattern without a message.
    """
    kind: dict[str, Any] = (
        {"x-kubernetes-int-or-string": True} if form == "int-or-string" else {"type": form}
    )
    return WithJsonSchema(
        {
            **kind,
            "maxLength": length_max,
            "x-kubernetes-validations": [{"rule": rule, "message": message}],
        }
    )


def _checked_by(pattern: str, sentence: str) -> AfterValidator:
    def check(value: str) -> str:
        if not re.fullmatch(pattern.removeprefix("^").removesuffix("$"), value):
            raise ValueError(f"invalid value {value!r}: {sentence}")
        return value

    return AfterValidator(check)


@functools.cache
def _known_time_zones() -> frozenset[str]:
    """Return the time zones of this machine; they are read from files, so only once."""
    return frozenset(zoneinfo.available_timezones())


def _checked_time_zone(value: str) -> str:
    known = _known_time_zones()
    # A machine without a time zone database cannot check the zone; the API server does.
    if known and value not in known:
        raise ValueError(f"invalid time zone {value!r}: {TIME_ZONE_SENTENCE}")
    return value


DURATION_PATTERN = r"^([0-9]+([.][0-9]+)?(ms|s|m|h|d))+$"
SCHEDULE_PATTERN = _cron_pattern()

Duration = Annotated[
    str,
    BeforeValidator(_checked_duration),
    _formed(
        "string",
        f"self.matches('{DURATION_PATTERN}')",
        "write a duration with its unit, such as 500ms, 5s or 1m30s",
        length_max=32,
    ),
]
Quantity = Annotated[
    str,
    BeforeValidator(_checked_quantity),
    _formed(
        "int-or-string",
        "type(self) == int || isQuantity(self)",
        "write a quantity such as 10Gi or 500m",
        length_max=32,
    ),
]
CronSchedule = Annotated[
    str,
    BeforeValidator(_checked_schedule),
    _formed(
        "string",
        f"self.matches('{SCHEDULE_PATTERN}')",
        "write a schedule of five fields (minute, hour, day, month, weekday), such as '15 * * * *'",
        length_max=128,
    ),
]
SecretName = Annotated[
    str,
    _checked_by(SECRET_PATTERN, SECRET_SENTENCE),
    _formed("string", f"self.matches('{SECRET_PATTERN}')", SECRET_SENTENCE, length_max=253),
]
ClassName = Annotated[
    str,
    _checked_by(CLASS_PATTERN, CLASS_SENTENCE),
    _formed("string", f"self.matches('{CLASS_PATTERN}')", CLASS_SENTENCE, length_max=253),
]
Image = Annotated[
    str,
    _checked_by(IMAGE_PATTERN, IMAGE_SENTENCE),
    _formed("string", f"self.matches('{IMAGE_PATTERN}')", IMAGE_SENTENCE, length_max=512),
]
TimeZone = Annotated[
    str,
    AfterValidator(_checked_time_zone),
    _formed(
        "string",
        # An unknown zone raises an error in the rule, so the API server refuses it as well.
        f"self.matches('{TIME_ZONE_PATTERN}') && self != 'Local'"
        " && timestamp('2026-01-01T00:00:00Z').getHours(self) >= 0",
        TIME_ZONE_SENTENCE,
    ),
]
NAMED: dict[str, JsonValue] = {
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["name"],
}
"""Schema of lists with named items: the API server refuses repeated names and merges by name."""
