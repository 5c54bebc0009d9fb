"""Merges the fragments of the journals that an archive names, as a step of a compaction."""

from typing import TYPE_CHECKING

from qsync_node.archive.compaction import FOLDER
from qsync_node.archive.manifest import SNAPSHOT
from qsync_node.archive.reader import Archive
from qsync_spark.audit.context import build_context
from qsync_spark.audit.specifications import archived_specs, specs_in_snapshot
from qsync_spark.journals.catalogue import list_journals
from qsync_spark.journals.compaction import MergeResult, compact
from qsync_spark.report.findings import AuditResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def merge_archived(spark: "SparkSession", archive: Archive, grace_s: float) -> MergeResult:
    """Merge small fragments of the journals in the newest snapshot, which a compaction wrote.

    A damaged fragment is neither merged nor deleted.

    Args:
        spark: the session.
        archive: the archive.
        grace_s: age in seconds of a merged fragment, after which its sources are deleted.
    """
    newest = max(
        (entry.last_index, owner.instance_uuid.startswith(f"{FOLDER}/"),
         f"{owner.instance_uuid}/{entry.name}")
        for owner in archive.owners() for entry in owner.of_kind(SNAPSHOT)
    )  # fmt: skip
    specs = specs_in_snapshot(spark, archive, newest[2])
    return compact(spark, list_journals(specs), grace_s)


def count_merges(
    spark: "SparkSession", archive: Archive, grace_s: float
) -> tuple[MergeResult, list[str]]:
    """Return what `merge_archived` would do after a compaction, and notes about unknown journals.

    The rows after the newest snapshot count, too.
    """
    result = AuditResult("", archive.url, archive.replicaset_uuid)
    context = build_context(spark, archive)
    try:
        specs = archived_specs(spark, context, result)
    finally:
        context.facts.unpersist()
    outcome = compact(spark, list_journals(specs), grace_s, is_dry=True)
    return outcome, [gap.message for gap in result.gaps]
