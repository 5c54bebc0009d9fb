"""The exception of the simulation."""


class Violation(Exception):  # noqa: N818  # a broken rule is not an error of the simulation
    """A rule was broken; the message names it."""
