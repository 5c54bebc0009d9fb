"""Batch jobs over the archive: a data source, an audit, a compaction. They read no live node."""
