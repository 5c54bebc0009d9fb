"""Failure of a command: exit code 1 and one sentence."""


class Failure(Exception):  # noqa: N818  # an outcome that is shown to a person
    """A command failed. The text states the cause and the action to take."""
