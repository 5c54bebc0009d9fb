"""Privileges that `spec.podTemplate` must not give where templates are restricted.

No field may have a value that the Pod Security standard `restricted` forbids, and a few more give a
pod another identity. The template is merged into a pod that meets the standard, so fields may be
omitted, but an explicit null is refused: it would remove the operator's value. A sidecar need not
repeat the fields that only the standard demands of each container.
"""

from collections.abc import Iterator
from typing import Any

from qsync_operator.api.podtemplate import as_map, as_maps

_IDENTITY = ("hostNetwork", "hostPID", "hostIPC", "serviceAccountName", "serviceAccount",
             "automountServiceAccountToken", "nodeName")  # fmt: skip
_VOLUMES = frozenset({"name", "configMap", "secret", "emptyDir", "projected", "downwardAPI",
                      "persistentVolumeClaim", "ephemeral", "csi"})  # fmt: skip
_CONTAINERS = ("initContainers", "containers", "ephemeralContainers")
_REQUIRED: dict[str, tuple[object, ...]] = {
    "runAsNonRoot": (True,),
    "privileged": (False,),
    "allowPrivilegeEscalation": (False,),
    "procMount": ("Default",),
}
"""The values that a security context may have; an omitted field is allowed."""
_PROFILES = ("RuntimeDefault", "Localhost")
_SELINUX_TYPES = ("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")
_SYSCTLS = frozenset(
    {
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.ip_local_reserved_ports",
        "net.ipv4.ip_unprivileged_port_start",
        "net.ipv4.ping_group_range",
        "net.ipv4.tcp_fin_timeout",
        "net.ipv4.tcp_keepalive_intvl",
        "net.ipv4.tcp_keepalive_probes",
        "net.ipv4.tcp_keepalive_time",
        "net.ipv4.tcp_rmem",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.tcp_wmem",
    }
)
_APPARMOR = "container.apparmor.security.beta.kubernetes.io/"
_APPARMOR_PROFILES = ("runtime/default", "localhost/")
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_HOOKS = ("postStart", "preStop")


def refuse_privileged(template: dict[str, Any]) -> None:
    """Refuse a template that gives a pod more privileges than a member needs.

    A user who may create clusters need not be allowed to create arbitrary pods.

    Raises:
        ValueError: the template sets such a field; the text names the first one.
    """
    for path in _privileges(as_map(template.get("metadata")), as_map(template.get("spec"))):
        raise ValueError(
            f"podTemplate.{path} is not allowed here: the operator was installed with"
            " podTemplate.restricted"
        )


def _privileges(metadata: dict[str, Any], spec: dict[str, Any]) -> Iterator[str]:
    for name, profile in as_map(metadata.get("annotations")).items():
        if name.startswith(_APPARMOR) and not str(profile).startswith(_APPARMOR_PROFILES):
            yield f"metadata.annotations[{name}]"
    for field in _IDENTITY:
        if spec.get(field):
            yield f"spec.{field}"
    for volume in as_maps(spec.get("volumes")):
        for kind in sorted(volume.keys() - _VOLUMES):
            yield f"spec.volumes[{volume.get('name')}].{kind}"
    yield from _of_context("spec", spec)
    for group in _CONTAINERS:
        for container in as_maps(spec.get(group)):
            yield from _of_container(f"spec.{group}[{container.get('name')}]", container)


def _of_container(where: str, container: dict[str, Any]) -> Iterator[str]:
    yield from _of_context(where, container)
    if any(port.get("hostPort") for port in as_maps(container.get("ports"))):
        yield f"{where}.ports.hostPort"
    hooks = as_map(container.get("lifecycle"))
    calls = {name: container.get(name) for name in _PROBES}
    calls |= {f"lifecycle.{name}": hooks.get(name) for name in _HOOKS}
    for name, call in calls.items():
        for kind in ("httpGet", "tcpSocket"):
            if as_map(as_map(call).get(kind)).get("host"):
                yield f"{where}.{name}.{kind}.host"


def _of_context(owner: str, document: dict[str, Any]) -> Iterator[str]:
    """Yield the paths in the security context of a pod or container."""
    where = f"{owner}.securityContext"
    if "securityContext" in document and document["securityContext"] is None:
        yield where
    context = as_map(document.get("securityContext"))
    for field, allowed in _REQUIRED.items():
        if field in context and context[field] not in allowed:
            yield f"{where}.{field}"
    if context.get("runAsUser") == 0:
        yield f"{where}.runAsUser"
    for field in ("seccompProfile", "appArmorProfile"):
        if field in context and as_map(context[field]).get("type") not in _PROFILES:
            yield f"{where}.{field}"
    labels = as_map(context.get("seLinuxOptions"))
    if labels.get("user") or labels.get("role") or labels.get("type", "") not in _SELINUX_TYPES:
        yield f"{where}.seLinuxOptions"
    for setting in as_maps(context.get("sysctls")):
        if str(setting.get("name")) not in _SYSCTLS:
            yield f"{where}.sysctls[{setting.get('name')}]"
    if as_map(context.get("windowsOptions")).get("hostProcess"):
        yield f"{where}.windowsOptions.hostProcess"
    yield from _of_capabilities(where, context)


def _of_capabilities(where: str, context: dict[str, Any]) -> Iterator[str]:
    if "capabilities" not in context:
        return
    capabilities = as_map(context["capabilities"])
    if capabilities.get("add"):
        yield f"{where}.capabilities.add"
    drop = capabilities.get("drop")
    is_dropped = isinstance(drop, list) and "ALL" in drop
    if context["capabilities"] is None or ("drop" in capabilities and not is_dropped):
        yield f"{where}.capabilities.drop"
