"""Run the audit in this process, without a Spark session: a second instead of many."""

from pathlib import Path

from qsync_node.archive.reader import load_archive
from qsync_spark.audit.run import audit
from qsync_spark.local_session import make_local_session
from qsync_spark.report.findings import AuditResult


def plain_audit(folder: Path, lag_allowed_s: float = 0.0) -> AuditResult:
    """Run proofs 1 to 4, and measure the values that the report plots.

    Args:
        folder: The archive.
        lag_allowed_s: How late a member's archive may be, in seconds.
    """
    session = make_local_session()
    try:
        archive = load_archive(f"file://{folder}")
        return audit(session, archive, "sim", None, lag_allowed_s, appends=None)
    finally:
        session.stop()
