"""Qsync's node: one replica of a quorum-synchronous replicated database."""

__version__ = "0.1.0"
