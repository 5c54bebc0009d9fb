"""A pydantic model as the structural schema that the API server takes.

pydantic writes JSON Schema; Kubernetes takes a part of it: no references, no titles, no
alternatives but `x-kubernetes-int-or-string`, no `additionalProperties` beside properties. What
cannot be expressed in it is refused here, when the CRDs are made, and not by a cluster later.
Every list, map and string gets a limit, because the API server estimates what the rules may cost
from those.
"""

from typing import Any

from pydantic import BaseModel

from qsync_operator.crds.words import speak

LIST_MAX = 64
MAP_MAX = 64
STRING_MAX = 1024
_KEPT = {
    "type", "description", "default", "enum", "pattern", "format", "nullable", "required",
    "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "maxProperties",
    "properties", "items", "additionalProperties",
}  # fmt: skip
_DROPPED = {"title", "$defs", "const"}


class SchemaError(Exception):
    """A model says something that no CRD can."""


def structural_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Raises SchemaError with the path of what cannot be expressed."""
    document = speak(model.model_json_schema(by_alias=True, mode="validation"), model)
    return _convert(document, document.get("$defs", {}), model.__name__)


def _convert(node: dict[str, Any], definitions: dict[str, Any], path: str) -> dict[str, Any]:
    node = _resolved(node, definitions, path)
    shown: dict[str, Any] = {}
    for key, value in node.items():
        if key in _DROPPED:
            continue
        if key == "properties":
            required = node.get("required", [])
            shown[key] = {
                name: _field(field, definitions, f"{path}.{name}", name in required)
                for name, field in value.items()
            }
        elif key == "items":
            shown[key] = _convert(value, definitions, f"{path}[]")
        elif key == "additionalProperties":
            if isinstance(value, dict):
                shown[key] = _convert(value, definitions, f"{path}{{}}")
        elif key in _KEPT or key.startswith("x-kubernetes-"):
            shown[key] = value
        else:
            raise SchemaError(f"{path}: {key} cannot be expressed in a CRD")
    return _limited(_opened(shown), path)


def _field(
    node: dict[str, Any], definitions: dict[str, Any], path: str, is_required: bool
) -> dict[str, Any]:
    """A part that was left out is there with its own defaults, so that rules can look at it;
    one whose default is nothing stays away."""
    shown = _convert(node, definitions, path)
    whole = whole_default(shown)
    if whole and not is_required and "default" not in node:
        shown["default"] = whole
    return shown


def whole_default(node: dict[str, Any]) -> dict[str, Any]:
    """All defaults inside: the API server holds a default against the rules as it stands."""
    properties = node.get("properties", {})
    return {name: inner["default"] for name, inner in properties.items() if "default" in inner}


def _resolved(node: dict[str, Any], definitions: dict[str, Any], path: str) -> dict[str, Any]:
    """References inlined, and the two alternatives that CRDs allow brought to their form."""
    node = dict(node)
    while "$ref" in node or "allOf" in node:
        inner = node.pop("allOf", None) or [{"$ref": node.pop("$ref")}]
        found = inner[0]
        if "$ref" in found:
            found = definitions[found["$ref"].rpartition("/")[2]]
        # Words about a field say more than words about its type.
        node = {**found, **node}
    if "anyOf" in node:
        branches = [b for b in node.pop("anyOf") if b.get("type") != "null"]
        if node.get("default", 0) is None:
            del node["default"]  # absent, not null
        if len(branches) == 1:
            return _resolved({**branches[0], **node}, definitions, path)
        if {branch.get("type") for branch in branches} != {"integer", "string"}:
            raise SchemaError(f"{path}: only a number or a text can be alternatives")
        node["x-kubernetes-int-or-string"] = True
    if "const" in node:
        node["enum"] = [node["const"]]
    return node


def _opened(node: dict[str, Any]) -> dict[str, Any]:
    """An object about which nothing is known keeps everything."""
    if node.get("type") == "object" and not node.keys() & {"properties", "additionalProperties"}:
        node["x-kubernetes-preserve-unknown-fields"] = True
    return node


def _limited(node: dict[str, Any], path: str) -> dict[str, Any]:
    kind = node.get("type")
    if kind == "array":
        node.setdefault("maxItems", LIST_MAX)
    elif kind == "object" and "additionalProperties" in node:
        # pydantic says a map's limit as it says a list's.
        node.setdefault("maxProperties", node.pop("maxItems", MAP_MAX))
    elif (kind == "string" and "enum" not in node) or "x-kubernetes-int-or-string" in node:
        node.setdefault("maxLength", STRING_MAX)
    elif kind is None:
        raise SchemaError(f"{path}: has no type")
    return node
