"""Where a replica's conversation with its source stands."""

from enum import Enum


class State(Enum):
    """Where the conversation with the source stands."""

    IDLE = "idle"
    COMPARING = "comparing"
    CUTTING = "cutting"
    FETCHING = "fetching"
    INSTALLING = "installing"
    FOLLOWING = "following"
