"""Restore: creates the state of a new cluster from an archive."""
