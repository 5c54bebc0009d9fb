"""Compaction: what an archive holds up to a confirmed index, as one snapshot and as tables."""
