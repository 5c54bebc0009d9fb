"""`qsync local`: clusters of processes on this machine."""
