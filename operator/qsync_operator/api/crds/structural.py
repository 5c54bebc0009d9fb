"""Converts a pydantic model to the structural schema that the API server accepts.

pydantic generates JSON Schema, and Kubernetes accepts a subset: no references, no titles, no
alternatives except `x-kubernetes-int-or-string`, and no `additionalProperties` next to properties.
Inexpressible constructs are refused here, when the CRDs are generated, and not later by a cluster.

Every list, map and string gets a limit, because the API server uses limits to estimate the cost of
rules.
"""

from typing import Any

from pydantic import BaseModel

from qsync_operator.api.crds.words import speak

LIST_MAX = 64
MAP_MAX = 64
STRING_MAX = 1024
_KEPT = {
    "type", "description", "default", "enum", "pattern", "format", "nullable", "required",
    "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "maxProperties",
    "properties", "items", "additionalProperties",
}  # fmt: skip
_DROPPED = {"title", "$defs", "const"}


class StructuralError(Exception):
    """A model that a CRD cannot express."""


def structural_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the structural schema of a model.

    Raises:
        SchemaError: a field cannot be expressed; the text holds its path.
    """
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
            raise StructuralError(f"{path}: {key} cannot be expressed in a CRD")
    return _limited(_opened(shown), path)


def _field(
    node: dict[str, Any], definitions: dict[str, Any], path: str, is_required: bool
) -> dict[str, Any]:
    """Convert a field, and give an omitted object its own defaults, so that rules can read them.

    A field whose default is null stays absent.
    """
    shown = _convert(node, definitions, path)
    whole = whole_default(shown)
    if whole and not is_required and "default" not in node:
        shown["default"] = whole
    return shown


def whole_default(node: dict[str, Any]) -> dict[str, Any]:
    """Return all defaults of an object; the API server applies the rules to a default as it is."""
    properties = node.get("properties", {})
    return {name: inner["default"] for name, inner in properties.items() if "default" in inner}


def _resolved(node: dict[str, Any], definitions: dict[str, Any], path: str) -> dict[str, Any]:
    """Inline references, and convert the two alternatives that CRDs allow to their form."""
    node = dict(node)
    while "$ref" in node or "allOf" in node:
        inner = node.pop("allOf", None) or [{"$ref": node.pop("$ref")}]
        found = inner[0]
        if "$ref" in found:
            found = definitions[found["$ref"].rpartition("/")[2]]
        # The description of a field is more specific than that of its type.
        node = {**found, **node}
    if "anyOf" in node:
        branches = [b for b in node.pop("anyOf") if b.get("type") != "null"]
        if node.get("default", 0) is None:
            del node["default"]  # absent rather than null
        if len(branches) == 1:
            return _resolved({**branches[0], **node}, definitions, path)
        if {branch.get("type") for branch in branches} != {"integer", "string"}:
            raise StructuralError(f"{path}: only a number and a text can be alternatives")
        node["x-kubernetes-int-or-string"] = True
    if "const" in node:
        node["enum"] = [node["const"]]
    return node


def _opened(node: dict[str, Any]) -> dict[str, Any]:
    """Let an object without declared fields keep everything."""
    if node.get("type") == "object" and not node.keys() & {"properties", "additionalProperties"}:
        node["x-kubernetes-preserve-unknown-fields"] = True
    return node


def _limited(node: dict[str, Any], path: str) -> dict[str, Any]:
    kind = node.get("type")
    if kind == "array":
        node.setdefault("maxItems", LIST_MAX)
    elif kind == "object" and "additionalProperties" in node:
        # pydantic expresses a map's limit like a list's.
        node.setdefault("maxProperties", node.pop("maxItems", MAP_MAX))
    elif (kind == "string" and "enum" not in node) or "x-kubernetes-int-or-string" in node:
        node.setdefault("maxLength", STRING_MAX)
    elif kind is None:
        raise StructuralError(f"{path}: has no type")
    return node
