"""The one exception of the simulation."""


class Violation(Exception):
    """A rule was broken; the message names it."""
