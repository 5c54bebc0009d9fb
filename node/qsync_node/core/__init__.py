"""The consensus core: ``step(now, inputs) -> effects``, without asyncio, files, sockets or clock.

Random numbers come from a generator that the caller supplies.
"""
