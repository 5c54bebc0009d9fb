"""Parameters that many verbs share, given to each by a decorator."""

import inspect
from collections.abc import Callable, Sequence
from functools import update_wrapper

KEYWORD = inspect.Parameter.KEYWORD_ONLY


def signed(
    run: Callable[..., None],
    verb: Callable[..., None],
    replaced: Sequence[str],
    *,
    first: Sequence[inspect.Parameter] = (),
    last: Sequence[inspect.Parameter] = (),
) -> Callable[..., None]:
    """Give `run` the name, help and signature of a verb, with other parameters for some of its own.

    Args:
        run: calls the verb.
        verb: the verb.
        replaced: its parameters that `run` builds.
        first: parameters before those of the verb.
        last: parameters after them.

    Returns:
        `run`, for typer, which reads its signature.
    """
    update_wrapper(run, verb)
    del run.__wrapped__  # type: ignore[attr-defined]  # set by update_wrapper
    own = inspect.signature(verb, eval_str=True).parameters.values()
    kept = [one.replace(kind=KEYWORD) for one in own if one.name not in replaced]
    parameters = [*first, *kept, *last]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def option(name: str, annotation: object) -> inspect.Parameter:
    """Return an option whose default is None."""
    return inspect.Parameter(name, KEYWORD, default=None, annotation=annotation)


def argument(name: str, annotation: object) -> inspect.Parameter:
    """Return an argument without a default."""
    return inspect.Parameter(name, KEYWORD, annotation=annotation)
