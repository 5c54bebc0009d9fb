"""Persisted fragments of journals, read by Spark: their listings and their content."""
