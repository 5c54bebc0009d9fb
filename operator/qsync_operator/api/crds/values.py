"""The schema of the values of the chart qsync-cluster, by which helm checks a specification.

Helm supports JSON Schema but not Kubernetes' rules, so their messages come later from the API
server.
"""

import json
from typing import Any

from qsync_operator.api.crds.kinds import KINDS, definition

_OWN = "x-kubernetes-"


def values_schema() -> str:
    schema = definition(KINDS[0])["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    strings = {"type": "object", "additionalProperties": {"type": "string"}}
    document = {
        "$schema": "https://json-schema.org/draft-07/schema#",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "global": {"type": "object"},
            "name": {"type": "string", "maxLength": 40},
            "labels": strings,
            "annotations": strings,
            "testImage": {"type": "string"},
            "spec": _plain(schema["properties"]["spec"]),
        },
    }
    return json.dumps(document, indent=1) + "\n"


def _plain(node: dict[str, Any]) -> dict[str, Any]:
    shown = {
        key: value
        for key, value in node.items()
        if not key.startswith(_OWN) and key not in ("default", "nullable")
    }
    if "x-kubernetes-int-or-string" in node:
        shown["type"] = ["integer", "number", "string"]
    if "properties" in shown:
        shown["properties"] = {name: _plain(child) for name, child in shown["properties"].items()}
        shown["additionalProperties"] = False
    for key in ("items", "additionalProperties"):
        if isinstance(shown.get(key), dict):
            shown[key] = _plain(shown[key])
    return shown
