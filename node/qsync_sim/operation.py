"""A request of a simulated client and its outcome: the entries of a schedule's history."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class ClientOperation:
    """A request from the client's point of view; `outcome` is empty until the answer."""

    client: int
    kind: str
    type: int
    body: bytes
    space: int
    key: int
    value: str
    member: str
    called_ns: int
    returned_ns: int = 0
    outcome: str = ""
    code: int = 0
    index: int = 0
    tuples: list[Any] = field(default_factory=list)
    floor_index: int = 0  # the greatest index this or another client had received before it
    ceiling_index: int = 0  # the greatest confirmed anywhere when the answer came
    transaction: int = 0
    idempotency: Any = None
    is_linearizable: bool = False
    is_repeated: bool = False  # of a transaction that was tried before, with the same key
    session: int = 0  # one for each connection to a process run
