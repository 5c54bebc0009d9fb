"""State of a replica's conversation with its source."""

from enum import Enum


class State(Enum):
    """State of the conversation with the source."""

    IDLE = "idle"
    COMPARING = "comparing"
    CUTTING = "cutting"
    FETCHING = "fetching"
    INSTALLING = "installing"
    FOLLOWING = "following"
