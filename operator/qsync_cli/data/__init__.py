"""Rows from the command line: one verb, one request."""
