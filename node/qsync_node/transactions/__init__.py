"""Requests of clients from arrival to answer: execution, commit, forwarding, reads, idempotency."""
