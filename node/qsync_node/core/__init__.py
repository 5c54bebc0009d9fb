"""Decisions: ``step(now, inputs) -> effects``. No asyncio, files, sockets, clock or random."""
