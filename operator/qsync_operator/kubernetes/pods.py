"""Reads pods: whether and where the member runs, and why it does not."""

from typing import Any

from qsync_operator.resources.labels import INPUTS_ANNOTATION, KubernetesObject

_PATIENT = {"ContainerCreating", "PodInitializing"}
MESSAGE_MAX = 300


def pod_ip(pod: KubernetesObject | None) -> str:
    """Return the pod's address, or "" while it has none."""
    return str((pod or {}).get("status", {}).get("podIP") or "")


def is_leaving(pod: KubernetesObject) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def container_of(pod: KubernetesObject | None, name: str = "node") -> dict[str, Any]:
    statuses = (pod or {}).get("status", {}).get("containerStatuses") or []
    return next((status for status in statuses if status.get("name") == name), {})


def image_of(pod: KubernetesObject | None) -> str:
    """Return the member's image, by digest if that is known; "" without a pod."""
    found = container_of(pod).get("imageID")
    containers = (pod or {}).get("spec", {}).get("containers") or []
    given = next((one.get("image") for one in containers if one.get("name") == "node"), "")
    return str(found or given or "")


def is_running(pod: KubernetesObject | None) -> bool:
    return "running" in (container_of(pod).get("state") or {})


def inputs_of(pod: KubernetesObject) -> str:
    return str((pod["metadata"].get("annotations") or {}).get(INPUTS_ANNOTATION, ""))


def template_inputs(live: KubernetesObject | None) -> str:
    """Return the restart inputs of a StatefulSet's template, or "" while they are uncertain.

    Until its controller has observed the last generation, a new pod may still be created from the
    previous template.
    """
    if live is None:
        return ""
    seen = int(live.get("status", {}).get("observedGeneration") or 0)
    if seen < int(live["metadata"].get("generation") or 0):
        return ""
    return inputs_of(live["spec"]["template"])


def failure_of(pod: KubernetesObject | None, container: str = "node") -> str:
    """Return why the pod cannot be kept running, as one sentence; "" if no such reason is known."""
    if pod is None:
        return ""
    if (sentence := _unscheduled(pod)) is not None:
        return sentence
    status = container_of(pod, container)
    waiting = (status.get("state") or {}).get("waiting")
    if not waiting or waiting.get("reason") in (None, *_PATIENT):
        return ""
    reason, message = waiting["reason"], str(waiting.get("message") or "")
    if reason == "CrashLoopBackOff":
        last = (status.get("lastState") or {}).get("terminated") or {}
        said = str(last.get("message") or "").strip().splitlines()
        ended = f"it ended with exit code {last.get('exitCode', '?')}"
        message = f"{ended}: {said[-1]}" if said else ended
    return f"{reason}: {message[:MESSAGE_MAX]}".removesuffix(": ")


def _unscheduled(pod: KubernetesObject) -> str | None:
    for condition in pod.get("status", {}).get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"{condition.get('reason')}: {str(condition.get('message'))[:MESSAGE_MAX]}"
    return None
