"""docs/reference.md: each field of each kind, generated from the custom resource definitions."""

from typing import Any

from qsync_operator.api.cluster import GROUP, VERSION
from qsync_operator.api.crds.kinds import KINDS, ResourceKind, schema_of

HEAD = f"""# Manifest fields

`make crds` generates this page and the definitions in `crds/` from the models. `kubectl explain
qc.spec` prints the same descriptions. Group `{GROUP}`, version `{VERSION}`. Fields in **bold** are
required. Durations have the form `500ms`, `5s`, `1m30s`; quantities `500m`, `10Gi`.
"""


def reference() -> str:
    return "\n".join([HEAD, *(line for kind in KINDS for line in _kind(kind))])


def _kind(kind: ResourceKind) -> list[str]:
    schema = schema_of(kind)
    lines = [f"## {kind.name} (`{kind.short_name}`)", ""]
    for part in ("spec", "status"):
        lines += [
            f"### {kind.name}.{part}",
            "",
            '<div class="fields" markdown>',
            "",
            "| field | type | default | description |",
            "| --- | --- | --- | --- |",
        ]
        lines += _rows(schema["properties"][part], "")
        lines += ["", "</div>", ""]
        own = {"x-kubernetes-validations": schema["x-kubernetes-validations"]}
        rules = _rules(own) + _rules(schema["properties"][part]) if part == "spec" else []
        if rules:
            lines += [
                "The API server refuses invalid manifests with these messages:",
                "",
                *rules,
                "",
            ]
    return lines


def _rows(node: dict[str, Any], path: str) -> list[str]:
    lines = []
    required = node.get("required", [])
    for name, field in node.get("properties", {}).items():
        here = f"{path}{name}"
        shown = f"**{here}**" if name in required else here
        words = field.get("description", "").replace("|", "\\|")
        lines.append(f"| {shown} | {_type(field)} | {_default(field)} | {words} |")
        lines += _rows(field, f"{here}.")
        lines += _rows(field.get("items", {}), f"{here}[].")
    return lines


def _type(field: dict[str, Any]) -> str:
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"] if value != "")
    if field.get("x-kubernetes-int-or-string"):
        return "number or text"
    if field["type"] == "array":
        inner = field["items"]
        what = _type(inner) if inner.get("type") != "object" else "objects"
        return f"list of {what}"
    if "additionalProperties" in field:
        return f"map of {_type(field['additionalProperties'])}"
    low, high = field.get("minimum"), field.get("maximum")
    if low is not None and high is not None:
        return f"{field['type']}, {low} to {high}"
    return str(field["type"])


def _default(field: dict[str, Any]) -> str:
    value = field.get("default")
    if value is None or value in ({}, []) or isinstance(value, dict):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _rules(node: dict[str, Any]) -> list[str]:
    """Return each message once, in the order of the fields."""
    found = [f"- {rule['message']}" for rule in node.get("x-kubernetes-validations", [])]
    for child in (*node.get("properties", {}).values(), *filter(None, [node.get("items")])):
        found += _rules(child)
    return list(dict.fromkeys(found))
