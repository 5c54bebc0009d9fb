"""Faults under load, and the comparison of a ledger of writes with the members."""
