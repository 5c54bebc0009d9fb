"""The exception of the simulation."""


class InvariantViolation(Exception):  # noqa: N818  # a broken rule is not an error of the simulation
    """A rule was broken; the message names it."""
