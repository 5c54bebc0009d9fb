"""Rows of archived files as columns, with their positions in the log. Consumers read `runs.py`."""
