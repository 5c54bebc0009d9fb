"""`qsync top`: a live view of one cluster."""
