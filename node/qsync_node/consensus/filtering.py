"""Lists of spaces: an anonymous replica may hold some of the user spaces instead of all.

Theory. The sender of rows omits the rows of unlisted user spaces and nothing else. Such a row
becomes a NOP with the same replica id, LSN and place in its transaction. Every index, clock, term
and decision is therefore the same in a filtered log. Comparing, confirming, restarting and
truncating need no special case. Rows of system spaces, control rows and idempotency keys are always
included. A snapshot omits the tuples of unlisted user spaces and nothing else.

The list consists of ids on the wire and on disk. The configuration may contain names. An empty
replica then first fetches the schema alone (a list without user spaces). It reads the ids from
`_space` and stores them in its ballot before it asks for rows. From then on a rename changes
nothing. The replica uses the same list until its directory is emptied, because its state lacks the
rows that were once omitted.

Invariants

  F1  The state of a filtered replica follows from the log and its list alone, not from the sender.
  F2  The list is durable before the first row or snapshot that was filtered by it.
  F3  A registered replica holds all spaces, and no replica gets more than its sender holds.
"""

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Protocol

from qsync_client.protocol.spaces import SystemSpace
from qsync_node.format.batch import LogBatch
from qsync_node.format.body import is_kept, is_user_space, space_of
from qsync_node.format.keys import CHANGES, NOP
from qsync_node.format.row import decode_rows, encode_header, scan_rows

if TYPE_CHECKING:
    from qsync_node.consensus.ballot import Ballot

SCHEMA_ONLY = (int(SystemSpace.SPACE),)
"""A list without user spaces: `_space`, like all system spaces, is always included."""
NEEDS_EVERYTHING = (
    "only an anonymous replica can have a list of spaces, because a registered one holds "
    "all spaces; remove the list and start with an empty data directory"
)


class SpaceSettings(Protocol):
    """The settings of a member that its list of spaces depends on."""

    @property
    def role(self) -> str:
        """Return the role that the member requests."""

    @property
    def spaces(self) -> tuple[str | int, ...]:
        """Return the names or ids of its user spaces, empty for all."""


# --- rows -------------------------------------------------------------------------------------


def keep_spaces(batch: LogBatch, spaces: Collection[int]) -> LogBatch:
    """Return `batch` with a NOP for every row of an unlisted space; other bytes are kept (L9)."""
    parts: list[bytes] = []
    start = 0
    for row, (_, _, end, _) in zip(decode_rows(batch.data), scan_rows(batch.data), strict=True):
        if row.type in CHANGES and not is_kept(space_of(row.body), spaces):
            row.type, row.body = NOP, b""
            parts.append(encode_header(row))
        else:
            parts.append(batch.data[start:end])
        start = end
    return batch._replace(data=b"".join(parts))


# --- lists ------------------------------------------------------------------------------------


def ids_of(
    listed: Iterable[str | int], find: Callable[[str], int | None]
) -> tuple[tuple[int, ...], str]:
    """Return the ids for a list of names and ids, with the reason for a refusal ("" if none).

    Args:
        listed: names and ids of user spaces.
        find: returns the id of a named space, or None.
    """
    found: set[int] = set()
    for item in listed:
        space_id = item if isinstance(item, int) else find(item)
        if space_id is None:
            return (), (
                f"unknown space {item!r} in `spaces`: create the space, or list its id instead"
            )
        if not is_user_space(space_id):
            return (), (
                f"{item!r} in `spaces` is not a user space: remove it, system spaces are "
                "always included"
            )
        found.add(space_id)
    return tuple(sorted(found)), ""


def shown(spaces: Iterable[str | int]) -> str:
    return ", ".join(str(space) for space in spaces)


# --- refusals ---------------------------------------------------------------------------------


def refusal_of_list(role: str, listed: Iterable[str | int]) -> str:
    """Return the reason why this role cannot have this list of spaces, or "" if it can."""
    items = list(listed)
    if items and role != "anonymous":
        return NEEDS_EVERYTHING
    for item in items:
        if isinstance(item, bool) or item == "":
            return f"{item!r} in `spaces` is neither the name nor the id of a space"
        if isinstance(item, int) and not is_user_space(item):
            return (
                f"{item} in `spaces` is not the id of a user space: remove it, system spaces "
                "are always included"
            )
    return ""


def refusal_to_serve(held: Collection[int], wanted: Collection[int]) -> str:
    """Return the reason why a member that holds `held` cannot serve `wanted`, or "" if it can.

    An empty list means all spaces (F3).
    """
    if not held:
        return ""
    asked = [space for space in wanted if is_user_space(space)]
    if wanted and all(space in held for space in asked):
        return ""
    return (
        f"the member holds only the spaces {shown(held)}; connect to a member that holds the others"
    )


def refusal_to_change(ballot: "Ballot", before: SpaceSettings, after: SpaceSettings) -> str:
    """Return the reason why a running replica cannot adopt these settings, or "" if it can."""
    if after.role != before.role and (ballot.spaces or before.spaces):
        return NEEDS_EVERYTHING
    if tuple(after.spaces) != before.spaces:
        return (
            "the list of spaces cannot change while the member runs; change the "
            "configuration and start with an empty data directory"
        )
    return ""


def refusal_to_start(
    ballot: "Ballot", settings: SpaceSettings, find: Callable[[str], int | None]
) -> str:
    """Return the reason why a stored state does not fit the settings, or "" if it does (F1).

    Names were resolved when the state was received: the same list always means the same ids.
    """
    held, listed = ballot.spaces, settings.spaces
    if set(listed) == set(ballot.listed_spaces):
        return ""
    ids, reason = ids_of(listed, find)
    if listed and not reason and ids == held:
        return ""
    if not listed:
        return (
            f"it holds only the spaces {shown(held)}, but the configuration lists none; "
            "restore the list of spaces, or empty the directory"
        )
    return (
        f"it holds {f'the spaces {shown(held)}' if held else 'all spaces'}, but the "
        f"configuration lists {shown(listed)}; restore the list of spaces, or empty the "
        "directory"
    )
