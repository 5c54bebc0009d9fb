"""The program of a Spark pod: the image's entry point.

    executor                          an executor, as Spark's scheduler starts it
    audit | compact --cluster ...     a driver: the pod of a Job (client mode)

A driver requests executors from the API server. They belong to its pod and end with it. The pod's
termination message contains the result, one JSON object of at most 4,096 bytes, and an annotation
of the pod contains the progress. The operator therefore need not read logs, and the job needs no
permission for other objects. The exit code is 0 for any verdict, and 1 with an `error` without one.
"""

import argparse
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qsync_spark import executor_main
from qsync_spark.entry import (
    add_archive_arguments,
    add_audit_arguments,
    add_compaction_arguments,
)
from qsync_spark.failures import sentence_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from qsync_spark.progress import Progress, ProgressStep

LAST_WORD = Path("/dev/termination-log")
LAST_WORD_BYTES_MAX = 4096
TEXT_MAX = 200
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# Below a volume of this pod only.
TEMPLATE = Path("/tmp/executor.json")
DRIVER_PORT, BLOCKS_PORT = 7078, 7079
NOTE_EVERY_S = 10.0  # for progress: each note is a write to the API server
PREFIX_MAX = 47  # of executors' names, a limit of Spark


def cluster_conf(environment: dict[str, str]) -> dict[str, str]:
    """Return Spark's configuration in a pod. Raises KeyError if the pod's identity is missing."""
    image = json.loads(environment["EXECUTOR_TEMPLATE"])["spec"]["containers"][0]["image"]
    return {
        "spark.submit.deployMode": "client",
        "spark.kubernetes.namespace": environment["POD_NAMESPACE"],
        "spark.kubernetes.driver.pod.name": environment["POD_NAME"],
        "spark.kubernetes.authenticate.caCertFile": str(ACCOUNT / "ca.crt"),
        "spark.kubernetes.authenticate.oauthTokenFile": str(ACCOUNT / "token"),
        "spark.kubernetes.container.image": image,
        "spark.kubernetes.container.image.pullPolicy": "IfNotPresent",
        "spark.kubernetes.executor.podNamePrefix": environment["RUN_NAME"][:PREFIX_MAX].rstrip("-"),
        "spark.kubernetes.executor.podTemplateFile": str(TEMPLATE),
        "spark.kubernetes.executor.podTemplateContainerName": "executor",
        "spark.kubernetes.executor.deleteOnTermination": "true",
        # No volumes and no Service need a clean-up, so no permission for them is needed.
        "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
        "spark.kubernetes.driver.reusePersistentVolumeClaim": "false",
        "spark.kubernetes.driver.service.deleteOnTermination": "false",
        "spark.driver.host": environment["POD_IP"],
        "spark.driver.port": str(DRIVER_PORT),
        "spark.driver.blockManager.port": str(BLOCKS_PORT),
        "spark.executorEnv.HOME": "/tmp",
        "spark.ui.enabled": "false",
        # Tasks wait until all executors have started, or for half a minute.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "30s",
    }


SECURITY = {
    # Spark makes a secret for each application, and passes it to executors in their environment.
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.authEngineVersion": "2",
    "spark.network.crypto.saslFallback": "false",
    "spark.io.encryption.enabled": "true",
}
"""Settings that no `--conf` changes."""


def session_conf(environment: dict[str, str], given: list[str]) -> dict[str, str]:
    """Merge `KEY=VALUE` pairs with the settings of a pod. Raises KeyError like `cluster_conf`."""
    wanted = dict(pair.partition("=")[::2] for pair in given)
    return {**cluster_conf(environment), **wanted, **SECURITY}


def master(environment: dict[str, str]) -> str:
    host, port = (environment[f"KUBERNETES_SERVICE_{name}"] for name in ("HOST", "PORT"))
    return f"k8s://https://{f'[{host}]' if ':' in host else host}:{port}"


def last_word(document: dict[str, Any]) -> bytes:
    """Return JSON that fits: violations, then hosts of tasks, are dropped from the end."""
    shown = dict(document)
    while True:
        text = json.dumps(shown, separators=(",", ":")).encode()
        longest = "violations" if shown.get("violations") else "taskHosts"
        if len(text) <= LAST_WORD_BYTES_MAX or not shown.get(longest):
            return text
        shown[longest] = shown[longest][:-1]


def audit_word(result: dict[str, Any], report: str, application: str) -> dict[str, Any]:
    """Return the result of an audit as fields of QsyncAudit's status."""
    violations = [
        {
            "proof": ",".join(map(str, one["proofs"])),
            "message": one["message"][:TEXT_MAX],
            "location": f"{one['file']}:{one['offset']}" if one["file"] else "",
        }
        for one in result["violations"]
    ]
    return {
        "verdict": result["verdict"],
        "proofs": [
            {"number": int(number), "verdict": one["verdict"]}
            for number, one in result["proofs"].items()
        ],
        "counts": {**result["counts"], "violations": result["violationCount"]},
        "violations": violations,
        "incomplete": "; ".join(one["message"] for one in result["incomplete"][:1])[:TEXT_MAX],
        "report": report,
        "applicationId": application,
        "taskHosts": result["hosts"],
    }


class Annotations:
    """Annotations of the driver's own pod: progress, and violations beyond the termination message.

    Nothing depends on them: a failure is only logged.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        host = master(environment).removeprefix("k8s://")
        pod, namespace = environment["POD_NAME"], environment["POD_NAMESPACE"]
        self._url = f"{host}/api/v1/namespaces/{namespace}/pods/{pod}"
        self._next_s = 0.0

    def note(self, step: "ProgressStep") -> None:
        """Note a `ProgressStep`; within one pass, one step per `NOTE_EVERY_S`."""
        now_s = time.monotonic()
        if step.rows and now_s < self._next_s:
            return
        self._next_s = now_s + NOTE_EVERY_S
        self._put("progress", json.dumps(step.document()))

    def note_violations(self, violations: list[dict[str, str]]) -> None:
        self._put("violations", json.dumps(violations))

    def _put(self, key: str, text: str) -> None:
        import ssl
        import urllib.request

        change = {"metadata": {"annotations": {f"qsync.dev/{key}": text}}}
        try:
            request = urllib.request.Request(
                self._url,
                data=json.dumps(change).encode(),
                method="PATCH",
                headers={
                    "Content-Type": "application/merge-patch+json",
                    "Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}",
                },
            )
            trusted = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
            urllib.request.urlopen(request, timeout=5, context=trusted).close()
        except OSError as error:
            sys.stderr.write(f"cannot annotate the pod with {key}: {error}\n")


def run_audit(
    arguments: argparse.Namespace, spark: "SparkSession", note: "Progress"
) -> dict[str, Any]:
    from qsync_node.archive.reader import load_archive
    from qsync_spark.audit.run import audit
    from qsync_spark.report.page import write_report

    archive = load_archive(arguments.archive)
    result = audit(
        spark,
        archive,
        arguments.cluster,
        progress=note,
        appends=arguments.appends,
        unarchived=arguments.unarchived,
    )
    alone = [host for host in result.hosts if host == socket.gethostname()]
    if alone:
        raise RuntimeError("tasks ran in the driver: an audit on Kubernetes requires executors")
    report = write_report(result, f"{archive.url}/audits/{os.environ['RUN_NAME']}")
    return audit_word(result.document(), report, spark.sparkContext.applicationId)


def compaction_word(outcome: dict[str, Any], application: str) -> dict[str, Any]:
    """Return the result of a compaction as fields of QsyncCompaction's status."""
    counts = {
        "index": outcome["index"], "floor": outcome["floor"],
        "tables": len(outcome["tables"]), "rows": sum(one["rows"] for one in outcome["tables"]),
        "mergedFiles": outcome["merged_files"], "deletedFiles": outcome["deleted_files"],
    }  # fmt: skip
    fragments = outcome.get("fragments") or {"problems": []}
    problems = fragments["problems"]
    counts |= {f"{key}Fragments": value for key, value in fragments.items() if key != "problems"}
    return {
        "snapshot": outcome["snapshot"],
        "bytesBefore": outcome["bytes_before"],
        "bytesAfter": outcome["bytes_after"],
        "counts": counts | ({"fragmentProblems": len(problems)} if problems else {}),
        "incomplete": problems[0][:TEXT_MAX] if problems else "",
        "report": outcome["snapshot"].rpartition("/")[0],
        "applicationId": application,
        "taskHosts": outcome["hosts"],
    }


def run_compaction(
    arguments: argparse.Namespace, spark: "SparkSession", note: "Progress"
) -> dict[str, Any]:
    from qsync_spark.compaction.run import Wish, compact

    wish = Wish(
        arguments.cluster,
        is_history=arguments.history,
        is_dry_run=arguments.dry_run,
        delete_older_than_s=arguments.delete_older_than,
        run=os.environ["RUN_NAME"],
        merges_fragments=arguments.merge_fragments,
        grace_s=arguments.grace,
    )
    outcome = compact(spark, arguments.archive, wish, note)
    return compaction_word(outcome.document(), spark.sparkContext.applicationId)


VERBS: dict[str, Callable[[argparse.Namespace, Any, Any], dict[str, Any]]] = {
    "audit": run_audit,
    "compact": run_compaction,
}


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="qsync-spark", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, add_arguments in (
        ("audit", add_audit_arguments),
        ("compact", add_compaction_arguments),
    ):
        one = verbs.add_parser(verb)
        add_archive_arguments(one, is_named=True)
        add_arguments(one)
        one.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE")
    return parser.parse_args(words)


def drive(arguments: argparse.Namespace) -> dict[str, Any]:
    from qsync_spark.session import make_session

    environment = dict(os.environ)
    TEMPLATE.write_text(environment["EXECUTOR_TEMPLATE"])
    conf = session_conf(environment, arguments.conf)
    spark = make_session(f"qsync-{arguments.verb}", master(environment), conf)
    said = Annotations(environment)
    try:
        word = VERBS[arguments.verb](arguments, spark, said.note)
        if word.get("violations"):
            said.note_violations(word["violations"])
        return word
    finally:
        spark.stop()


def main() -> int:
    if sys.argv[1:2] == ["executor"]:
        executor_main.main()
    arguments = parse(sys.argv[1:])
    # Spark's own handler ends only the JVM: an exit in the main thread stops the session, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        LAST_WORD.write_bytes(last_word(drive(arguments)))
    except Exception as error:  # noqa: BLE001  # the status shows any failure
        sentence = sentence_of(error)[:TEXT_MAX]
        LAST_WORD.write_bytes(last_word({"error": sentence}))
        sys.stderr.write(f"{sentence}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
