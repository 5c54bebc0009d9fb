"""System spaces: the one table of their ids and names.

Ids are Tarantool's if Tarantool has the space. Those from 490 are Qsync's own. Hot paths bind an id
as a plain int: a member of an `IntEnum` costs about three times as much in a comparison.
"""

from enum import IntEnum
from typing import Final


class SystemSpace(IntEnum):
    """Ids of system spaces. The name of a space is that of its member (`space_name`)."""

    VINYL_DEFERRED_DELETE = 257
    SCHEMA = 272
    COLLATION = 276
    VCOLLATION = 277
    SPACE = 280
    VSPACE = 281
    SEQUENCE = 284
    SEQUENCE_DATA = 285
    VSEQUENCE = 286
    INDEX = 288
    VINDEX = 289
    FUNC = 296
    VFUNC = 297
    USER = 304
    VUSER = 305
    PRIV = 312
    VPRIV = 313
    CLUSTER = 320
    TRIGGER = 328
    TRUNCATE = 330
    SPACE_SEQUENCE = 340
    FK_CONSTRAINT = 356
    CK_CONSTRAINT = 364
    FUNC_INDEX = 372
    SESSION_SETTINGS = 380
    QSYNC_TERM = 490
    QSYNC_KEY = 491
    QSYNC_REMOVED = 492
    QSYNC_JOURNAL = 493
    QSYNC_BROKER = 494
    QSYNC_ASSIGNMENT = 495
    QSYNC_PUBLICATION = 496
    QSYNC_PUBLISHER = 497

    @property
    def space_name(self) -> str:
        """Return the name of the space, such as `_space`."""
        return f"_{self.name.lower()}"


SYSTEM_SPACE_MAX: Final = 511
FIRST_USER_SPACE: Final = 512
"""Spaces with smaller ids belong to the system."""
SPACE_ID_MAX: Final = 0x7FFFFFFF
NAME_INDEX: Final = 2
"""Id of the index of names of `_space`, `_vspace`, `_func` and `_user`."""
