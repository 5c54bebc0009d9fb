"""Journals with a store: audits with a ledger of appends, and a restore of the cluster."""

import json
from collections import Counter
from typing import Any

from e2e import archive_server
from e2e.clients import HERE, writer_pod
from e2e.kube import run
from e2e.scenario import CLUSTER, QSYNC, Scene, Wrong, scenario
from e2e.scenarios.audits import SMALL
from e2e.timeouts import CONVERGE_S, READY_S, ROLL_S, SPARK_S

POD, JOURNAL, RESOURCE = "writer", "orders/eu", "orders-eu"
RESTORED = "orders-again"
STORE, NEW_STORE = (
    f"s3://{archive_server.BUCKET}/{name}/" for name in ("fragments", "fragments-2")
)
NEW_ARCHIVE = f"s3://{archive_server.BUCKET}/{RESTORED}"
LEDGER, LEDGER_URL = "/ledger/appends.jsonl", f"{archive_server.URL}/audits/appends.jsonl"
APPENDS = 6
SHORT, LONG = 1024, 1 << 20
NUMBERS = 400  # lines of an append, which is longer than a fragment
LINES = "/ledger/lines"


def _shell(scene: Scene, script: str) -> str:
    return scene.kubectl("exec", POD, "--", "sh", "-ec", script)


def _stores(scene: Scene, *words: str) -> str:
    return scene.kubectl("exec", POD, "--", "python", "/script/stores.py", *words)


def _brokers(cluster: str) -> str:
    return f"http://{cluster}-journals:8080"


def _start_pod(scene: Scene) -> None:
    """Start a pod with qsync, the credentials of the store and the script of its objects."""
    script = (HERE / "pods" / "stores.py").read_text()
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": POD},
        "data": {"stores.py": script},
    }
    pod = json.loads(writer_pod(scene, ""))
    container = pod["spec"]["containers"][0]
    container["command"] = ["sleep", "3600"]
    container["envFrom"] = [{"secretRef": {"name": archive_server.SECRET}}]
    for document in (config, pod):
        scene.kubectl("apply", "-f", "-", stdin=json.dumps(document))
    ready = ("wait", "--for=condition=Ready", f"pod/{POD}", f"--timeout={READY_S:.0f}s")
    scene.kubectl(*ready, timeout_s=READY_S + 10)


def _declare(scene: Scene, length: int = SHORT) -> None:
    """Declare a journal of short fragments, which are persisted at once."""
    fragment = {"length": length, "stores": [STORE], "refreshInterval": "1s"}
    document = {
        "apiVersion": "qsync.dev/v1alpha1",
        "kind": "QsyncJournal",
        "metadata": {"name": RESOURCE},
        "spec": {"cluster": CLUSTER, "journal": JOURNAL, "replication": 2, "fragment": fragment},
    }
    scene.kubectl("apply", "-f", "-", stdin=json.dumps(document))
    wait = ("wait", f"qsyncjournal/{RESOURCE}", "--for=condition=Writable")
    scene.kubectl(*wait, f"--timeout={CONVERGE_S:.0f}s", timeout_s=CONVERGE_S + 10)


def _append(scene: Scene, cluster: str, *options: str) -> str:
    """Append the lines, and complete the fragment by an append without content."""
    verb = f"qsync journals append {JOURNAL} {{}} --broker {_brokers(cluster)} {' '.join(options)}"
    return _shell(scene, f"{verb.format(LINES)}; {verb.format('/dev/null')} >/dev/null")


def _persisted(scene: Scene, store: str) -> list[str]:
    return _stores(scene, "list", store + JOURNAL + "/").split()


def _length(scene: Scene) -> int:
    """Return the length of a fragment in the specification of the journal."""
    said = _shell(scene, f"qsync journals list --broker {_brokers(CLUSTER)} -o json")
    (found,) = json.loads(said)
    return int(found["spec"]["fragment"]["length"])


def _segments(scene: Scene) -> Counter[str]:
    """Return the number of archived segments of each member."""
    paths = _stores(scene, "list", f"{archive_server.URL}/").split()
    return Counter(path.partition("/")[0] for path in paths if path.endswith(".xlog"))


def _read(scene: Scene, cluster: str) -> str:
    return _shell(scene, f"qsync journals read {JOURNAL} --broker {_brokers(cluster)} | sha1sum")


def _audit(scene: Scene) -> tuple[dict[str, Any], str]:
    """Run an audit with the ledger; return its status and the output of the command."""
    command = (QSYNC, "audit", "-n", scene.name, "--cluster", CLUSTER, "--appends", LEDGER_URL)
    try:
        said = run(*command, timeout_s=SPARK_S)
    except RuntimeError as error:
        said = str(error)
    found = json.loads(scene.kubectl("get", "qsyncaudits", "-o", "json"))["items"]
    newest = max(found, key=lambda one: str(one["metadata"]["creationTimestamp"]))
    status: dict[str, Any] = newest.get("status") or {}
    return status, said


def _fifth(status: dict[str, Any]) -> str:
    """Return the verdict of proof 5."""
    verdicts = {one["number"]: one["verdict"] for one in status.get("proofs", [])}
    return str(verdicts.get(5, ""))


def _begin(scene: Scene) -> dict[str, Any]:
    """Start a cluster with an archive and a journal, of which all bytes are persisted."""
    archive_server.build()
    archive = archive_server.start(scene)
    schedule = {"schedule": "0 0 1 1 *", "spark": SMALL}  # the size of audits by hand
    scene.start(archive=archive, journals={"enabled": True}, audit=schedule)
    _declare(scene)
    _start_pod(scene)
    _shell(scene, f"seq 1 {NUMBERS} > {LINES}")
    for _ in range(APPENDS):
        _append(scene, CLUSTER, "--ledger", LEDGER)
    scene.wait("fragments", lambda: len(_persisted(scene, STORE)) >= APPENDS, CONVERGE_S)
    _stores(scene, "put", LEDGER_URL, LEDGER)
    return archive


def _audits(scene: Scene) -> str:
    status, said = _audit(scene)
    if status.get("verdict") != "Passed" or _fifth(status) != "Passed":
        raise Wrong(f"the audit of a sound journal did not pass: {json.dumps(status)} {said}")
    counts = status["counts"]
    if counts["fragments"] != APPENDS or counts["ledgerAppends"] < APPENDS:
        raise Wrong(f"the audit did not read all fragments and appends: {json.dumps(counts)}")
    damaged = _persisted(scene, STORE)[APPENDS // 2]
    place = f"{STORE}{JOURNAL}/{damaged}"
    _stores(scene, "damage", place)
    status, said = _audit(scene)
    _stores(scene, "repair", place)
    first = next(iter(status.get("violations") or []), {"message": "", "location": ""})
    is_named = JOURNAL in first["message"] and damaged in first["location"]
    if status.get("verdict") != "Violated" or _fifth(status) != "Violated" or not is_named:
        raise Wrong(f"the damage to {damaged} was not named: {json.dumps(status)} {said}")
    if "Violated" not in said or damaged not in said:
        raise Wrong(f"kubectl qsync audit printed {said!r}")
    return f"{counts['ledgerAppends']} appends proven, and the damage to {damaged} named"


def _restore(scene: Scene, archive: dict[str, Any]) -> str:
    """Start a cluster from the archive, and compare the bytes of its journal."""
    before = _read(scene, CLUSTER)
    fragments = _persisted(scene, STORE)
    begin = {
        "url": archive["url"],
        "journalStore": NEW_STORE,
        "credentialsSecret": archive_server.SECRET,
    }
    document = json.loads(
        scene.manifest(
            archive={**archive, "url": NEW_ARCHIVE},
            journals={"enabled": True},
            bootstrap={"fromArchive": begin},
        )
    )
    document["metadata"]["name"] = RESTORED
    scene.kubectl("apply", "-f", "-", stdin=json.dumps(document))
    ready = ("wait", f"qc/{RESTORED}", "--for=condition=Ready", f"--timeout={ROLL_S:.0f}s")
    scene.kubectl(*ready, timeout_s=ROLL_S + 10)
    if _persisted(scene, NEW_STORE) != fragments:
        raise Wrong(f"the restore copied other fragments: {_persisted(scene, NEW_STORE)}")

    def is_refused() -> bool:
        """Return whether brokers serve the journal, and demand that its head is accepted."""
        try:
            _append(scene, RESTORED)
        except RuntimeError as error:
            return "INDEX_HAS_GREATER_OFFSET" in str(error)
        raise Wrong("an append before reset-head succeeded")

    scene.wait("the refusal of appends", is_refused, CONVERGE_S)
    _shell(scene, f"qsync journals reset-head {JOURNAL} --broker {_brokers(RESTORED)}")
    if (after := _read(scene, RESTORED)) != before:
        raise Wrong(f"the restored journal has other bytes: {after} instead of {before}")
    said = _append(scene, RESTORED)
    end = len("".join(f"{number}\n" for number in range(1, NUMBERS + 1))) * APPENDS
    if not said.endswith(f" at {end}\n"):
        raise Wrong(f"an append to the restored journal is not at offset {end}: {said}")
    scene.wait(
        "the persisted append",
        lambda: len(_persisted(scene, NEW_STORE)) > len(fragments),
        CONVERGE_S,
    )
    if _persisted(scene, STORE) != fragments:
        raise Wrong("the restored cluster wrote to the store of the former one")
    return f"{len(fragments)} fragments restored, and appends continue at {end}"


@scenario(not_local="archive")
def journals_compaction(scene: Scene) -> str:
    """A compaction of the archive merges small fragments, and an audit of the result passes."""
    _begin(scene)
    before = _read(scene, CLUSTER)
    _declare(scene, LONG)  # the fragments are small ones now
    scene.wait("the declaration", lambda: _length(scene) == LONG, CONVERGE_S)
    archived = _segments(scene)
    # Renewed leases are rows, so each member archives further segments: the second one is newer.
    scene.wait(
        "the archived declaration",
        lambda: all(_segments(scene)[member] > count + 1 for member, count in archived.items()),
        CONVERGE_S,
    )
    command = (QSYNC, "compact", "-n", scene.name, "--cluster", CLUSTER, "--merge-fragments")
    said = run(*command, timeout_s=SPARK_S)
    (one,) = json.loads(scene.kubectl("get", "qsynccompactions", "-o", "json"))["items"]
    counts = one["status"]["counts"]
    if counts.get("mergedFragments") != APPENDS or "were merged" not in said:
        raise Wrong(f"the compaction did not merge the fragments: {json.dumps(one['status'])}")
    if len(_persisted(scene, STORE)) != APPENDS + 1:
        raise Wrong(f"the store has other fragments: {_persisted(scene, STORE)}")
    if (after := _read(scene, CLUSTER)) != before:
        raise Wrong(f"the journal has other bytes after the compaction: {after}")
    status, said = _audit(scene)
    if status.get("verdict") != "Passed" or _fifth(status) != "Passed":
        raise Wrong(f"the audit after the compaction did not pass: {json.dumps(status)} {said}")
    return f"{counts['mergedFragments']} fragments merged into {counts['writtenFragments']}"


@scenario(not_local="archive")
def journals_audit(scene: Scene) -> str:
    """An audit proves a journal against its ledger, and names damage. A restore continues it."""
    archive = _begin(scene)
    audited = _audits(scene)
    return f"{audited}; {_restore(scene, archive)}"
