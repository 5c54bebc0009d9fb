"""The audit: six proofs from the archives of all members. Begin reading with `run.py`."""
