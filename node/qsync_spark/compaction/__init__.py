"""Compaction: the contents of an archive up to a confirmed index, as one snapshot and as tables."""
