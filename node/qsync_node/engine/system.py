"""Numbers of system spaces, as plain ints, and of users and privileges."""

from typing import Final

from qsync_client.protocol.access import ALL_PRIVILEGES as ALL_PRIVILEGES  # noqa: PLC0414  # shared
from qsync_client.protocol.access import Privilege, UserId
from qsync_client.protocol.spaces import SystemSpace

SCHEMA_ID: Final = int(SystemSpace.SCHEMA)
COLLATION_ID: Final = int(SystemSpace.COLLATION)
VCOLLATION_ID: Final = int(SystemSpace.VCOLLATION)
SPACE_ID: Final = int(SystemSpace.SPACE)
VSPACE_ID: Final = int(SystemSpace.VSPACE)
SEQUENCE_ID: Final = int(SystemSpace.SEQUENCE)
SEQUENCE_DATA_ID: Final = int(SystemSpace.SEQUENCE_DATA)
VSEQUENCE_ID: Final = int(SystemSpace.VSEQUENCE)
INDEX_ID: Final = int(SystemSpace.INDEX)
VINDEX_ID: Final = int(SystemSpace.VINDEX)
FUNC_ID: Final = int(SystemSpace.FUNC)
VFUNC_ID: Final = int(SystemSpace.VFUNC)
USER_ID: Final = int(SystemSpace.USER)
VUSER_ID: Final = int(SystemSpace.VUSER)
PRIV_ID: Final = int(SystemSpace.PRIV)
VPRIV_ID: Final = int(SystemSpace.VPRIV)
CLUSTER_ID: Final = int(SystemSpace.CLUSTER)
TRIGGER_ID: Final = int(SystemSpace.TRIGGER)
TRUNCATE_ID: Final = int(SystemSpace.TRUNCATE)
SPACE_SEQUENCE_ID: Final = int(SystemSpace.SPACE_SEQUENCE)
FK_CONSTRAINT_ID: Final = int(SystemSpace.FK_CONSTRAINT)
CK_CONSTRAINT_ID: Final = int(SystemSpace.CK_CONSTRAINT)
FUNC_INDEX_ID: Final = int(SystemSpace.FUNC_INDEX)
SESSION_SETTINGS_ID: Final = int(SystemSpace.SESSION_SETTINGS)

# Spaces that the engine itself reads: their definitions are fixed.
BUILTIN_IDS: Final = frozenset(int(one) for one in SystemSpace if one < SystemSpace.QSYNC_TERM)
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

GUEST: Final = int(UserId.GUEST)
ADMIN: Final = int(UserId.ADMIN)
PUBLIC: Final = int(UserId.PUBLIC)
REPLICATION: Final = int(UserId.REPLICATION)
SUPER: Final = int(UserId.SUPER)

READ: Final = int(Privilege.READ)
WRITE: Final = int(Privilege.WRITE)
EXECUTE: Final = int(Privilege.EXECUTE)
SESSION: Final = int(Privilege.SESSION)
USAGE: Final = int(Privilege.USAGE)
CREATE: Final = int(Privilege.CREATE)
DROP: Final = int(Privilege.DROP)
ALTER: Final = int(Privilege.ALTER)
GRANT: Final = int(Privilege.GRANT)
REVOKE: Final = int(Privilege.REVOKE)

PRIVILEGE_NAMES: Final = {int(one): str(one.name).capitalize() for one in Privilege}
