"""Unmodified Tarantool instances as replicas: their replication protocol, served from the log."""
