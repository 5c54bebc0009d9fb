"""Security contexts: no privileges, and writes to volumes only."""

from qsync_operator.resources.labels import KubernetesObject

USER = 10001


def pod_security(**more: str) -> KubernetesObject:
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        **more,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> KubernetesObject:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
