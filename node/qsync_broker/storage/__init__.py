"""Durable spools of a broker: one file per spool, one commit log for all journals."""
