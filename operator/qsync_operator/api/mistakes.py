"""Sentences about the mistakes of a document, each with the path of the field.

They use the terms of the manifest, not those of the library that found the mistake.
"""

import difflib
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from qsync_operator.api.patterns import FORMS

_SENTENCES = {
    "bool_parsing": "write true or false",
    "bool_type": "write true or false",
    "dict_type": "write a map of fields",
    "greater_than_equal": "it must be at least {ge}",
    "int_from_float": "write a whole number",
    "int_parsing": "write a whole number",
    "int_type": "write a whole number",
    "less_than_equal": "it must be at most {le}",
    "list_type": "write a list",
    "literal_error": "write {expected}",
    "model_attributes_type": "write a map of fields",
    "model_type": "write a map of fields",
    "string_too_long": "it must have at most {max_length} characters",
    "string_too_short": "it must have at least {min_length} characters",
    "string_type": "write a text, in quotation marks if it is a number",
    "too_long": "it must have at most {max_length} items",
    "too_short": "it must have at least {min_length} items",
}
"""Sentences by pydantic's type of a mistake, with names of its context in braces."""


def sentence_of(error: ValidationError, model: type[BaseModel]) -> str:
    """Return all mistakes of a document in one line."""
    return "; ".join(sentences_of(error, model))


def sentences_of(error: ValidationError, model: type[BaseModel]) -> list[str]:
    """Return a sentence for each mistake, in the order of the model's fields."""
    errors = error.errors()
    explained = set(_explained(errors, model))
    found: dict[str, str] = {}
    for one in errors:
        location = _location(one)
        if one["type"] == "missing" and tuple(location) in explained:
            continue
        # Alternatives of one field report a mistake each: the first one suffices.
        key = _path(location) or one["msg"]
        found.setdefault(key, _sentence(one, location, model))
    return list(found.values())


def _explained(errors: list[ErrorDetails], model: type[BaseModel]) -> Iterator[tuple[Any, ...]]:
    """Yield the places of missing fields that are there under a misspelt name."""
    for one in errors:
        if one["type"] == "extra_forbidden":
            location = _location(one)
            yield from ((*location[:-1], name) for name in _close(location, model))


def _sentence(error: ErrorDetails, location: list[int | str], model: type[BaseModel]) -> str:
    path, kind = _path(location), error["type"]
    if kind == "extra_forbidden":
        close = _close(location, model)
        hint = f": did you mean {close[0]}?" if close else ""
        return f"{path} is not a known field{hint}"
    if kind == "missing":
        return f"{path} is missing"
    message = error["msg"].removeprefix("Value error, ")
    if kind == "value_error":
        return f"{path}: {message}" if path else message
    context = error.get("ctx") or {}
    if kind == "string_pattern_mismatch" and context.get("pattern") in FORMS:
        message = FORMS[context["pattern"]]
    elif kind in _SENTENCES:
        message = _SENTENCES[kind].format(**context)
        message = message.replace("1 characters", "1 character").replace("1 items", "1 item")
    shown = "" if isinstance(error["input"], (dict, list)) else f" {error['input']!r}"
    return f"{path}{shown}: {message[:1].lower()}{message[1:]}"


def _close(location: list[int | str], model: type[BaseModel]) -> list[str]:
    """Return the known field that is most similar to an unknown one, or an empty list."""
    return difflib.get_close_matches(str(location[-1]), _fields_at(model, location[:-1]), 1)


def _location(error: ErrorDetails) -> list[int | str]:
    return [part for part in error["loc"] if not _is_branch(part)]


def _is_branch(part: int | str) -> bool:
    """Return whether pydantic named a branch of a union here rather than a field."""
    return part in ("int", "str", "function-before[_checked_schedule(), str]")


def _path(location: list[int | str]) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _fields_at(model: type[BaseModel], location: list[int | str]) -> list[str]:
    """Return the fields that the manifest may have at `location`, for the hint."""
    current: type[BaseModel] | None = model
    for part in location:
        if isinstance(part, int) or current is None:
            continue
        found = next((f for f in current.model_fields.values() if f.alias == part), None)
        current = _model_in(found.annotation) if found is not None else None
    return [f.alias or "" for f in current.model_fields.values()] if current is not None else []


def _model_in(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part))), None)
