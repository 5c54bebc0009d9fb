"""The audit: six proofs from the archives of all members. `run.py` is where to begin reading."""
