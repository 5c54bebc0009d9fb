"""How a command says that it did not happen: exit code 1 and one sentence."""


class Failure(Exception):  # noqa: N818  # an outcome that is shown to a person
    """It did not happen; the text says why and what to do."""
