"""`qsync local start` and `stop`, as `qsync start` and `stop`."""

from qsync_cli import power
from qsync_cli.options import NameArgument, NoWaitOption, OutputOption, TimeoutOption
from qsync_cli.where import Where


def start(
    name: NameArgument,
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = 120.0,
    output: OutputOption = None,
) -> None:
    """Start a cluster that was stopped, and wait until it is Ready."""
    power.hibernate(Where(local=name), False, None if no_wait else timeout, output)


def stop(
    name: NameArgument,
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = 120.0,
    output: OutputOption = None,
) -> None:
    """Stop all members of a cluster, and keep everything else: `spec.hibernate`."""
    power.hibernate(Where(local=name), True, None if no_wait else timeout, output)
