"""Journals: Gazette's transactional appends on the nodes of a Qsync cluster (docs/journals.md)."""
