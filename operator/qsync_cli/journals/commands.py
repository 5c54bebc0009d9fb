"""The table of the commands of `qsync journals`, as in `qsync_cli.commands`."""

from qsync_cli.lazy import LazyCommand

JOURNALS = (
    LazyCommand(
        "list",
        "journals.listing:listing",
        "List journals: replication, primary, brokers, first store.",
        ("qsync journals list --local events",),
    ),
    LazyCommand(
        "append",
        "journals.append:append",
        "Append a file as a whole, or standard input, and print its offsets.",
        ("qsync journals append orders/eu order.json --local events",),
    ),
    LazyCommand(
        "read",
        "journals.read:read",
        "Write the bytes of a journal to standard output.",
        ("qsync journals read orders/eu -f --local events",),
    ),
    LazyCommand(
        "fragments",
        "journals.fragments:fragments",
        "List the fragments of a journal: offset, length, persistence, SHA-1, codec.",
        ("qsync journals fragments orders/eu --local events",),
    ),
    LazyCommand(
        "edit",
        "journals.edit:edit",
        "Change specifications in $EDITOR; a concurrent change is refused.",
        ("qsync journals edit -l prefix=orders/ --local events",),
    ),
    LazyCommand(
        "delete",
        "journals.delete:delete",
        "Delete a journal, its registers, and its bytes at the brokers.",
        ("qsync journals delete orders/eu --local events",),
    ),
    LazyCommand(
        "reset-head",
        "journals.reset_head:reset_head",
        "Resume a journal whose last bytes are lost, at its write head.",
        ("qsync journals reset-head orders/eu --local events",),
    ),
    LazyCommand(
        "accept-loss",
        "journals.accept_loss:accept_loss",
        "Accept that bytes of a journal are lost, because the last disk with all of them is gone.",
        ("qsync journals accept-loss orders/eu --local events",),
    ),
    LazyCommand(
        "publish",
        "journals.publish:publish",
        "Publish a file as a whole, or standard input, and print its sequence.",
        ("qsync journals publish orders/eu order.json --wait --local events",),
    ),
    LazyCommand(
        "compact",
        "journals.compact:compact",
        "Merge small persisted fragments into ones of about `fragment.length`.",
        ("qsync journals compact --dry-run --local events",),
    ),
    LazyCommand(
        "prune",
        "journals.prune:prune",
        "Delete persisted fragments that are older than `fragment.retention` of their journal.",
        ("qsync journals prune --dry-run --local events",),
    ),
)
