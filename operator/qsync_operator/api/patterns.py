"""Patterns of names, without the models: commands that need only these start faster."""

NAME_PATTERN = r"^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$"
"""Names have at most 40 characters, because a pod's host name has at most 63.

The longest member names have the form NAME-reader-12.
"""
