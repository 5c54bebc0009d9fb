"""Batch jobs over the archive: a data source, an audit, a compaction. Reads no live node."""
