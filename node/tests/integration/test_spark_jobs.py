"""Jobs as processes: their errors for bad input, and their end together with their parent."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from qsync_node.archive.manifest import MANIFEST_NAME, ROOT_NAME
from qsync_spark.pod_main import (
    LAST_WORD_BYTES_MAX,
    SECURITY,
    compaction_word,
    last_word,
    parse,
    session_conf,
)
from qsync_spark.session import JAVA_BANNER
from qsync_testing.archives.archive_copy import Copy
from qsync_testing.archives.simulated import archived_run, archived_runs, is_eventful
from qsync_testing.object_server import object_server
from qsync_testing.paths import ROOT
from qsync_testing.processes import wait_until

pytestmark = pytest.mark.timeout(900)
JOBS = ("qsync_spark.audit", "qsync_spark.compaction")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("archive") / "sim"
    archived_run(1, made)
    return made


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return next(archived_runs(tmp_path_factory.mktemp("archives"), is_eventful, 1))


def refuse(job: str, url: str, words: tuple[str, ...] = (), **environment: str) -> str:
    """Run a job that must exit with code 1 and one sentence, and return the sentence."""
    done = subprocess.run(
        [sys.executable, "-m", job, "--archive", url, "--master", "local[1]", *words],
        capture_output=True, text=True, check=False, env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 1, done
    assert not done.stdout
    said = [line for line in done.stderr.splitlines() if line]
    assert len(said) == 1, said
    return said[0]


@pytest.mark.parametrize("job", JOBS)
def test_an_archive_that_cannot_be_read(job: str, folder: Path, tmp_path: Path) -> None:
    assert "does not exist: check" in refuse(job, f"file://{tmp_path}/nowhere")
    assert "cannot open" in refuse(job, "nonsense://there")
    (tmp_path / "empty").mkdir()
    assert "is empty: no member" in refuse(job, f"file://{tmp_path}/empty")
    (tmp_path / "empty" / "letter.txt").write_text("hello")
    assert "is not an archive of Qsync" in refuse(job, f"file://{tmp_path}/empty")
    copy = Copy(folder, tmp_path / "copy", 1)
    path = next(copy.folder.glob(f"*/{MANIFEST_NAME}"))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 99}))
    assert "use a newer Qsync" in refuse(job, f"file://{copy.folder}")
    (copy.folder / ROOT_NAME).write_text("{")
    assert "is not a valid manifest" in refuse(job, f"file://{copy.folder}")
    closed = {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "wrong", "AWS_SECRET_ACCESS_KEY": "wrong", "AWS_REGION": "eu-1",
        "AWS_MAX_RETRIES": "0",
    }  # fmt: skip
    assert "cannot read archive s3://bucket/orders" in refuse(
        job, "s3://bucket/orders", (), **closed
    )


def test_the_line_for_a_spark_of_ones_own(whole: Path, tmp_path: Path) -> None:
    """The command is that of docs/spark.md, except for the master and the places.

    Java prints one line before it reads any setting of Spark or Log4j.
    """
    page = (ROOT / "docs" / "spark.md").read_text()
    lines = page[page.index("JOBS=$(") :].partition("```")[0]
    for printed, here in (
        ("spark://master:7077", "'local[2]'"),
        ("s3://bucket/orders/audits/by-hand", str(tmp_path / "report")),
        ("s3://bucket/orders", f"file://{whole}"),
    ):
        assert printed in lines
        lines = lines.replace(printed, here)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", lines], capture_output=True, text=True, check=False,
        env={**os.environ, "PATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["verdict"] == "Passed"
    assert (tmp_path / "report" / "report.html").exists()
    assert done.stderr.splitlines() == [JAVA_BANNER.decode()]


def test_archive_ledger_and_report_are_in_one_store(whole: Path, tmp_path: Path) -> None:
    """The store speaks S3's protocol, and the job prints nothing but the verdict."""
    folder = "s3://bucket/orders"
    audits = tmp_path / "orders" / "audits"
    with object_server(bucket=tmp_path) as server:
        shutil.copytree(whole, tmp_path / "orders")
        audits.mkdir(exist_ok=True)
        ledger = b'{"id": 1000000000, "outcome": "committed", "ended": 0.1}\n'
        (audits / "ledger.jsonl").write_bytes(ledger)
        done = subprocess.run(
            [
                sys.executable, "-m", "qsync_spark.audit", "--archive", folder,
                "--ledger", f"{folder}/audits/ledger.jsonl", "--report", f"{folder}/audits/by-hand",
            ],
            capture_output=True, text=True, check=False, env={**os.environ, **server.environment},
        )  # fmt: skip
    assert not done.stderr
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert {n for n, one in found["proofs"].items() if one["verdict"] == "Violated"} == {"6"}
    made = {path.name for path in (audits / "by-hand").iterdir()}
    assert made == {"report.html", "violations.parquet", "incomplete.parquet", "audit.json"}
    assert json.loads((audits / "by-hand" / "audit.json").read_text()) == found


def test_audit_of_an_archive_that_may_lack_confirmed_rows_is_incomplete(whole: Path) -> None:
    done = subprocess.run(
        [
            sys.executable, "-m", "qsync_spark.audit", "--archive", f"file://{whole}",
            "--engine", "process", "--unarchived", "all volumes are gone",
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert found["verdict"] == "Incomplete"
    (gap,) = found["incomplete"]
    assert gap["message"].endswith("are unknown: all volumes are gone")


def test_without_a_master_spark_logs_as_little_as_with_a_local_one() -> None:
    """Its scheduler may report tasks that end while it stops."""
    text = (
        "from qsync_spark.session import make_session; s = make_session('levels');"
        "log = s.sparkContext._jvm.org.apache.logging.log4j.LogManager.getRootLogger();"
        "print(s.sparkContext.master, log.getLevel().toString()); s.stop()"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert (done.stdout.split(), done.stderr) == (["local[*]", "FATAL"], "")


@pytest.mark.parametrize("job", JOBS)
def test_a_task_that_fails_is_one_line(job: str, folder: Path) -> None:
    said = refuse(job, f"file://{folder}", PYSPARK_PYTHON="/nowhere/python")
    assert "failed: a task of Spark failed: " in said
    assert "/nowhere/python" in said
    assert "--debug" in said


def test_without_java_a_job_names_the_package_to_install(folder: Path) -> None:
    said = refuse(JOBS[0], f"file://{folder}", JAVA_HOME="/nowhere")
    assert said.startswith("Spark did not start: ")
    assert "/nowhere/bin/java" in said
    assert said.endswith("; install Java 17 or newer, or set JAVA_HOME")


def test_a_ledger_that_is_not_there_is_one_line(folder: Path) -> None:
    said = refuse(JOBS[0], f"file://{folder}", words=("--ledger", "/nowhere/ledger.jsonl"))
    assert "/nowhere/ledger.jsonl: not found" in said


def test_a_job_ends_with_its_command(folder: Path, tmp_path: Path) -> None:
    """`kill -9` of `qsync local audit` also ends the job and its JVM."""
    home = tmp_path / "home"
    (home / "orders").mkdir(parents=True)
    document = {
        "apiVersion": "qsync.dev/v1alpha1", "kind": "QsyncCluster", "metadata": {"name": "orders"},
        "spec": {"archive": {"url": f"file://{folder}"}},
    }  # fmt: skip
    (home / "orders" / "cluster.json").write_text(json.dumps(document))
    secrets = {"cluster": "a secret", "username": "app", "password": "a password"}
    (home / "orders" / "secrets.json").write_text(json.dumps(secrets))
    words = ["local", "audit", "orders", "--engine", "spark"]
    command = [sys.executable, "-m", "qsync_cli.main", *words]
    started = subprocess.Popen(
        command, env={**os.environ, "QSYNC_HOME": str(home)}, stderr=subprocess.DEVNULL
    )
    children: list[psutil.Process] = []

    def has_jvm() -> bool:
        children[:] = psutil.Process(started.pid).children(recursive=True)
        return any("java" in _name(child) for child in children)

    wait_until("the JVM", has_jvm, 300)
    started.send_signal(signal.SIGKILL)
    started.wait()
    wait_until("all have ended", lambda: not any(_is_running(child) for child in children), 300)


def _name(process: psutil.Process) -> str:
    """Return a process's name, or "" if it has ended: short-lived commands start the JVM."""
    try:
        return str(process.name())
    except psutil.NoSuchProcess:
        return ""


def _is_running(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.mark.untraced
def test_a_disk_that_fills_during_a_compaction(folder: Path, tmp_path: Path) -> None:
    """Nothing is published in part, and nothing is deleted."""
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    before = sorted(path for path in copy.rglob("*") if path.is_file())
    done = subprocess.run(
        [
            "bash", "-c", 'ulimit -f 1; exec "$@"', "-", sys.executable, "-m",
            "qsync_node.archive.restore", "--archive", f"file://{copy}", "--into",
            str(tmp_path / "out"),
        ],
        capture_output=True, text=True, check=False, preexec_fn=_ignore_size_signal,
    )  # fmt: skip
    assert done.returncode == 1, done
    assert done.stderr.count("\n") == 1
    assert not list((tmp_path / "out").glob("*.snap*"))
    assert sorted(path for path in copy.rglob("*") if path.is_file()) == before


def _ignore_size_signal() -> None:
    """Ignore SIGXFSZ, so that a file at its size limit fails like one on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def test_the_last_word_of_a_compaction() -> None:
    arguments = parse(
        ["compact", "--cluster", "orders", "--archive", "s3://b/o", "--delete-older-than", "30d"]
    )
    assert (arguments.delete_older_than, arguments.dry_run) == (30 * 86400.0, False)
    outcome = {
        "snapshot": "s3://b/o/compactions/x/1.snap", "bytes_before": 10, "bytes_after": 5,
        "index": 7, "floor": 3, "tables": [{"rows": 4}] * 500, "merged_files": 2,
        "deleted_files": 1, "hosts": ["a", "b"],
    }  # fmt: skip
    word = compaction_word(outcome, "app-1")
    assert word["report"] == "s3://b/o/compactions/x"
    assert word["counts"]["rows"] == 2000
    assert len(last_word(word)) < LAST_WORD_BYTES_MAX
    fragments = {"merged": 7, "written": 2, "removed": 3, "waiting": 0, "problems": ["a", "b"]}
    merged = compaction_word({**outcome, "fragments": fragments}, "app-1")
    assert (merged["counts"]["mergedFragments"], merged["counts"]["removedFragments"]) == (7, 3)
    assert (merged["counts"]["fragmentProblems"], merged["incomplete"]) == (2, "a")


def test_arguments_of_pods_are_those_of_the_jobs() -> None:
    place = ["--cluster", "orders", "--archive", "s3://b/o"]
    audit = parse(["audit", *place, "--appends", "s3://b/1", "--appends", "s3://b/2"])
    assert audit.appends == ["s3://b/1", "s3://b/2"]
    compaction = parse(["compact", *place, "--merge-fragments", "--grace", "1h"])
    assert (compaction.merge_fragments, compaction.grace) == (True, 3600.0)
    for words in (["audit", "--archive", "s3://b/o"], ["audit", *place, "--merge-fragments"]):
        with pytest.raises(SystemExit):
            parse(words)


def test_image_of_spark_has_every_package_that_the_jobs_import() -> None:
    root = ROOT
    script = """
import importlib, importlib.metadata, pkgutil, sys
import qsync_spark
for module in pkgutil.walk_packages(qsync_spark.__path__, "qsync_spark."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
known = importlib.metadata.packages_distributions()
names = {name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)
for name in names:
    print(*([name] if name.startswith("qsync_") else known.get(name, [])))
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = {name.lower().replace("_", "-") for name in done.stdout.split()}
    stage = (root / "Dockerfile").read_text().partition("FROM spark-needs")[2].partition("FROM")[0]
    copied = {line.split()[-1].rpartition("/")[2].replace("_", "-")
              for line in stage.splitlines() if line.startswith("COPY node/")}  # fmt: skip
    lock = (root / "locks" / "spark.txt").read_text()
    locked = {line.partition("==")[0] for line in lock.splitlines() if "==" in line}
    assert "qsync-spark" in imported
    ours = {"qsync-db", "setuptools"}  # a hook of the editable installation
    assert not imported - copied - locked - ours


def test_no_conf_of_a_run_switches_its_security_off() -> None:
    template = {"spec": {"containers": [{"image": "spark"}]}}
    environment = {
        "EXECUTOR_TEMPLATE": json.dumps(template), "POD_NAMESPACE": "ns", "POD_NAME": "p",
        "POD_IP": "10.0.0.1", "RUN_NAME": "r",
    }  # fmt: skip
    conf = session_conf(environment, ["spark.authenticate=false", "spark.ui.enabled=true"])
    assert conf["spark.authenticate"] == conf["spark.network.crypto.enabled"] == "true"
    assert conf["spark.ui.enabled"] == "true"
    assert session_conf(environment, [])["spark.ui.enabled"] == "false"
    assert not any("secret" in key for key in SECURITY)  # Spark generates one per application
