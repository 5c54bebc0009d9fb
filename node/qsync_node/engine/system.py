"""Numbers of system spaces, users and privileges."""

from typing import Final

SCHEMA_ID: Final = 272
COLLATION_ID: Final = 276
VCOLLATION_ID: Final = 277
SPACE_ID: Final = 280
VSPACE_ID: Final = 281
SEQUENCE_ID: Final = 284
SEQUENCE_DATA_ID: Final = 285
VSEQUENCE_ID: Final = 286
INDEX_ID: Final = 288
VINDEX_ID: Final = 289
FUNC_ID: Final = 296
VFUNC_ID: Final = 297
USER_ID: Final = 304
VUSER_ID: Final = 305
PRIV_ID: Final = 312
VPRIV_ID: Final = 313
CLUSTER_ID: Final = 320
TRIGGER_ID: Final = 328
TRUNCATE_ID: Final = 330
SPACE_SEQUENCE_ID: Final = 340
FK_CONSTRAINT_ID: Final = 356
CK_CONSTRAINT_ID: Final = 364
FUNC_INDEX_ID: Final = 372
SESSION_SETTINGS_ID: Final = 380

# Spaces that the engine itself reads: their definitions are fixed.
BUILTIN_IDS: Final = frozenset(
    {
        257, SCHEMA_ID, COLLATION_ID, VCOLLATION_ID, SPACE_ID, VSPACE_ID, SEQUENCE_ID,
        SEQUENCE_DATA_ID, VSEQUENCE_ID, INDEX_ID, VINDEX_ID, FUNC_ID, VFUNC_ID, USER_ID, VUSER_ID,
        PRIV_ID, VPRIV_ID, CLUSTER_ID, TRIGGER_ID, TRUNCATE_ID, SPACE_SEQUENCE_ID,
        FK_CONSTRAINT_ID, CK_CONSTRAINT_ID, FUNC_INDEX_ID, SESSION_SETTINGS_ID,
    }
)  # fmt: skip
# Key of the `_schema` row in a snapshot that holds the schema version.
SCHEMA_VERSION_KEY: Final = "qsync_schema_version"
# Spaces whose rows change the catalogue, beyond their storage.
CATALOGUE_IDS: Final = frozenset(
    {
        SCHEMA_ID, COLLATION_ID, SPACE_ID, SEQUENCE_ID, INDEX_ID, FUNC_ID, USER_ID, PRIV_ID,
        CLUSTER_ID, TRIGGER_ID, TRUNCATE_ID, SPACE_SEQUENCE_ID, FK_CONSTRAINT_ID,
        CK_CONSTRAINT_ID, FUNC_INDEX_ID, SESSION_SETTINGS_ID,
    }
)  # fmt: skip
# Spaces whose rows change the schema that connectors read.
SCHEMA_IDS: Final = frozenset({SPACE_ID, INDEX_ID, PRIV_ID, SPACE_SEQUENCE_ID})

GUEST: Final = 0
ADMIN: Final = 1
PUBLIC: Final = 2
REPLICATION: Final = 3
SUPER: Final = 31

READ: Final = 1
WRITE: Final = 2
EXECUTE: Final = 4
SESSION: Final = 8
USAGE: Final = 16
CREATE: Final = 32
DROP: Final = 64
ALTER: Final = 128
GRANT: Final = 8192
REVOKE: Final = 16384
ALL_PRIVILEGES: Final = 0xFFFFFFFF

PRIVILEGE_NAMES: Final = {
    READ: "Read",
    WRITE: "Write",
    EXECUTE: "Execute",
    SESSION: "Session",
    USAGE: "Usage",
    CREATE: "Create",
    DROP: "Drop",
    ALTER: "Alter",
    GRANT: "Grant",
    REVOKE: "Revoke",
}
