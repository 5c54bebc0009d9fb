"""Brokers of journals: as processes, in this process, simulated, and stepped by hand."""
