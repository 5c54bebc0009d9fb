"""Security contexts: no privileges, and writes to volumes only."""

from qsync_operator.resources.labels import Object

USER = 10001


def pod_security(**more: str) -> Object:
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        **more,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> Object:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
