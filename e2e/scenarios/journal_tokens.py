"""Tokens of clients of journals, with keys in a Secret that is created late and then changed."""

import base64
import json
import os

from e2e.scenario import CLUSTER, Scene, Wrong, scenario
from e2e.scenarios.journals import JOURNAL, POD, RESOURCE, start_pod
from e2e.timeouts import CONVERGE_S, MOUNT_S
from qsync_broker.auth import Authorizer, Capability

SECRET = "journal-keys"
TOKEN_S = 3600


def _new_key() -> str:
    return base64.b64encode(os.urandom(32)).decode()


def _put(scene: Scene, *keys: str) -> None:
    document = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": SECRET},
        "stringData": {"keys": " ".join(keys)},
    }
    scene.kubectl("apply", "-f", "-", stdin=json.dumps(document))


def _refusal(scene: Scene, key: str) -> str:
    """Return why an append with a token of this key (none if "") fails, or ""."""
    token = Authorizer.of_text(key).sign(Capability.ALL, {}, TOKEN_S) if key else ""
    words = ("append", JOURNAL, "/dev/null", "--broker", f"http://{CLUSTER}-journals:8080")
    given = ("--token", token) if token else ()
    try:
        scene.kubectl("exec", POD, "--", "qsync", "journals", *words, *given)
    except RuntimeError as error:
        return str(error)
    return ""


def _declare(scene: Scene) -> None:
    document = {
        "apiVersion": "qsync.dev/v1alpha1",
        "kind": "QsyncJournal",
        "metadata": {"name": RESOURCE},
        "spec": {"cluster": CLUSTER, "journal": JOURNAL, "replication": 1},
    }
    scene.kubectl("apply", "-f", "-", stdin=json.dumps(document))


def _is_writable(scene: Scene) -> bool:
    found = (scene.get("qsyncjournal", RESOURCE).get("status") or {}).get("conditions", [])
    return any((one["type"], one["status"]) == ("Writable", "True") for one in found)


@scenario(modest=True, not_local="pods")
def journals_tokens(scene: Scene) -> str:
    """Brokers wait for the Secret with their keys, require tokens, and use changed keys."""
    scene.start(replicas=1, journals={"enabled": True, "authKeysSecret": SECRET})
    _declare(scene)
    is_reported = scene.has_reason("Degraded", "JournalsRefused")
    scene.wait("the missing Secret in the status", is_reported, CONVERGE_S)
    start_pod(scene, "sleep 3600")
    first, second = _new_key(), _new_key()
    _put(scene, first)
    # The operator reads the state of the journal with a token of its own.
    mounted_s = scene.wait("a writable journal", lambda: _is_writable(scene), MOUNT_S)
    scene.wait("the end of the report", lambda: not is_reported(), CONVERGE_S)
    if said := _refusal(scene, first):
        raise Wrong(f"a token with the key of the Secret is refused: {said}")
    for key in ("", second):
        if "token" not in (said := _refusal(scene, key)):
            raise Wrong(f"an append without a valid token: {said or 'succeeded'}")
    before = scene.pods()
    _put(scene, second)
    changed_s = scene.wait("the new key", lambda: not _refusal(scene, second), MOUNT_S)
    if "token" not in (said := _refusal(scene, first)):
        raise Wrong(f"a token with the former key: {said or 'accepted'}")
    scene.wait("a writable journal", lambda: _is_writable(scene), CONVERGE_S)
    if scene.pods() != before:
        raise Wrong("a pod was replaced for the new key")
    return f"keys were in use {mounted_s:.0f} s after their Secret, and {changed_s:.0f} s later"
