"""The catalogue: effects of system-space rows beyond their storage. Control path.

Each handler checks the change against the current state, raises before it changes anything, and
then replaces spaces with new ones. It runs *before* the row itself is stored. It runs in a scratch
layer when a user executes the statement, and again in the state that keeps the row.
"""

from collections.abc import Callable
from typing import Any

from qsync_node.errors import ClientError, ErrorCode

from . import errors, grants, rows, sequences, system
from .build import add_entry
from .definitions import IndexDef, SpaceDef
from .fields import decode
from .index import IndexView
from .keydef import KeyDef
from .space import SequenceUse, SpaceData
from .state import DatabaseState
from .tupleformat import TupleFormat

CatalogueFields = list[Any] | None
EMPTY_PASSWORD_HASH = "vhvewKp0tNyweZQ+cFKAlsyphfg="


def on_change(state: DatabaseState, space_id: int, old: bytes | None, new: bytes | None) -> None:
    handler = _HANDLERS.get(space_id)
    if handler is not None:
        handler(
            state,
            decode(old) if old is not None else None,
            decode(new) if new is not None else None,
        )


# --- spaces ---------------------------------------------------------------------------------------


def _on_space(state: DatabaseState, old: CatalogueFields, new: CatalogueFields) -> None:
    if new is None:
        assert old is not None
        _drop_space(state, old[0], old[2])
        return
    definition = rows.read_space(new, is_new=old is None)
    known = state.own_space(definition.id)
    if known is None:
        sequence = _sequence_use(state, definition.id)
        state.set_space(definition.id, SpaceData(definition, {}, {}, sequence))
        return
    _check_space_change(known, definition)
    _replace_definition(state, known, definition)


def _check_space_change(known: SpaceData, definition: SpaceDef) -> None:
    if known.definition.engine != definition.engine:
        raise rows.alter_error(known.name, "can not change space engine")
    if bool(known.definition.flags.get("group_id")) != bool(definition.flags.get("group_id")):
        raise rows.alter_error(known.name, "replication group is immutable")


def _replace_definition(state: DatabaseState, known: SpaceData, definition: SpaceDef) -> None:
    if definition == known.definition:
        state.set_space(definition.id, known)  # each start loads the rows of all system spaces
        return
    space = SpaceData(definition, known.index_defs, known.indexes, known.sequence)
    if (
        definition.fields != known.definition.fields
        or definition.field_count != known.definition.field_count
    ):
        _check_tuples(state, known, definition, space.format)
    state.set_space(definition.id, space)


def _check_tuples(
    state: DatabaseState, space: SpaceData, definition: SpaceDef, tuple_format: TupleFormat
) -> None:
    if state.build_of(space.id, definition) is not None:
        return
    state.check_extent(space.id, definition, tuple_format, {})
    primary = space.indexes.get(0)
    if primary is not None:
        for _, packed in primary.entries():
            tuple_format.validate(decode(packed))


def _drop_space(state: DatabaseState, space_id: int, name: str) -> None:
    space = state.find_space(space_id)
    if space is not None and space.index_defs:
        raise _cannot_drop(name, "the space has indexes")
    if space_id <= system.SESSION_SETTINGS_ID:
        raise _cannot_drop(name, "the space is a system space")
    if space is not None and space.sequence is not None:
        raise _cannot_drop(name, "the space has sequence")
    if grants.is_granted(state, "space", space_id):
        raise _cannot_drop(name, "the space has grants")
    if state.row(system.TRUNCATE_ID, space_id) is not None:
        raise _cannot_drop(name, "the space has truncate record")
    state.set_space(space_id, None)


def _cannot_drop(name: str, reason: str) -> ClientError:
    return ClientError(ErrorCode.DROP_SPACE, f"Can't drop space '{name}': {reason}")


def _on_truncate(state: DatabaseState, old: CatalogueFields, new: CatalogueFields) -> None:
    if new is None:
        return
    space = state.own_space(new[0])
    if space is None:
        # Recovery meets rows of spaces that were dropped later; only a statement can be wrong here.
        raise ClientError(ErrorCode.NO_SUCH_SPACE, f"Space '{new[0]}' does not exist")
    if space.is_system:
        raise ClientError(
            errors.TRUNCATE_SYSTEM_SPACE, f"Can't truncate a system space, space '{space.name}'"
        )
    indexes = {
        index_id: state.new_index(space.index_defs[index_id], index.key_def)
        for index_id, index in space.indexes.items()
    }
    state.set_space(
        space.id, SpaceData(space.definition, space.index_defs, indexes, space.sequence)
    )


# --- indexes --------------------------------------------------------------------------------------


def _on_index(state: DatabaseState, old: CatalogueFields, new: CatalogueFields) -> None:
    row = new if new is not None else old
    assert row is not None
    space = state.own_space(row[0])
    if space is None:
        raise ClientError(ErrorCode.NO_SUCH_SPACE, f"Space '{row[0]}' does not exist")
    if new is None:
        _drop_index(state, space, row[1])
        return
    if row[1] != 0 and 0 not in space.index_defs and not space.definition.is_view:
        raise rows.alter_error(space.name, "can not add a secondary key before primary")
    _put_index(state, space, rows.read_index(new, space.definition))


def _drop_index(state: DatabaseState, space: SpaceData, index_id: int) -> None:
    if index_id == 0 and space.is_system:
        raise ClientError(
            ErrorCode.LAST_DROP,
            f"Can't drop the primary key in a system space, space '{space.name}'",
        )
    if index_id == 0 and len(space.index_defs) > 1:
        raise ClientError(
            ErrorCode.DROP_PRIMARY_KEY,
            f"Can't drop primary key in space '{space.name}' while secondary keys exist",
        )
    if index_id == 0 and space.sequence is not None:
        raise rows.alter_error(space.name, "can not drop primary key while space sequence exists")
    index_defs = {iid: d for iid, d in space.index_defs.items() if iid != index_id}
    indexes = {iid: index for iid, index in space.indexes.items() if iid != index_id}
    state.set_space(space.id, SpaceData(space.definition, index_defs, indexes, space.sequence))


def _put_index(state: DatabaseState, space: SpaceData, definition: IndexDef) -> None:
    known = space.index_defs.get(definition.id)
    if definition == known:
        state.set_space(space.id, space)
        return
    index_defs = dict(space.index_defs)
    index_defs[definition.id] = definition
    index_defs = dict(sorted(index_defs.items()))
    # If two indexes disagree about a field, the error names the changed one last.
    others = [other for other in index_defs.values() if other is not definition]
    in_order = [definition, *others] if definition.id == 0 else [*others, definition]
    tuple_format = TupleFormat(space.definition, in_order)
    if known is not None and _is_same_structure(known, definition):
        indexes = space.indexes
    else:
        indexes = _build_indexes(state, space, index_defs, definition, tuple_format)
    state.set_space(
        space.id, SpaceData(space.definition, index_defs, indexes, space.sequence, tuple_format)
    )


def _is_same_structure(one: IndexDef, two: IndexDef) -> bool:
    return (one.is_tree, one.is_unique, one.parts) == (two.is_tree, two.is_unique, two.parts)


def _build_indexes(
    state: DatabaseState,
    space: SpaceData,
    index_defs: dict[int, IndexDef],
    changed: IndexDef,
    tuple_format: TupleFormat,
) -> dict[int, IndexView]:
    """Return the space's indexes with the changed one built.

    A new primary key rebuilds all of them.
    """
    finished = state.build_of(space.id, changed)
    if finished is not None:
        adopted = {
            index_id: state.adopt_index(definition, index)
            for index_id, (definition, index) in finished.targets.items()
        }
        return dict(sorted({**space.indexes, **adopted}.items()))
    primary_parts = index_defs[0].parts if 0 in index_defs else changed.parts
    rebuilt = {
        index_id: (definition, KeyDef(definition.parts, definition.is_unique, primary_parts))
        for index_id, definition in index_defs.items()
        if changed.id in (0, index_id)
    }
    state.check_extent(space.id, changed, tuple_format, rebuilt)
    added = {index_id: state.new_index(*wanted) for index_id, wanted in rebuilt.items()}
    old_primary = space.indexes.get(0)
    if old_primary is not None:
        for _, packed in old_primary.entries():
            fields = decode(packed)
            tuple_format.validate(fields)
            for index_id, index in added.items():
                add_entry(space, index_defs[index_id], index, fields, packed)
    return dict(sorted({**space.indexes, **added}.items()))


# --- sequences ------------------------------------------------------------------------------------


def _on_sequence(state: DatabaseState, old: CatalogueFields, new: CatalogueFields) -> None:
    if new is not None:
        _check_sequence(sequences.Sequence(*new[:9]), old is None)
        return
    assert old is not None
    if next(state.rows_with(system.SPACE_SEQUENCE_ID, 1, old[0]), None) is not None:
        raise _cannot_drop_sequence(old[2], "the sequence is in use")
    if state.row(system.SEQUENCE_DATA_ID, old[0]) is not None:
        raise _cannot_drop_sequence(old[2], "the sequence has data")
    if grants.is_granted(state, "sequence", old[0]):
        raise _cannot_drop_sequence(old[2], "the sequence has grants")


def _check_sequence(sequence: sequences.Sequence, is_new: bool) -> None:
    code, verb = (errors.CREATE_SEQUENCE, "create") if is_new else (errors.ALTER_SEQUENCE, "modify")
    name = sequence.name
    if rows.is_too_long(name):
        name = rows.shortened(name)
        raise ClientError(code, f"Failed to {verb} sequence '{name}': sequence name is too long")
    rows.check_name(name)
    if sequence.step == 0:
        reason = "step option must be non-zero"
    elif sequence.least > sequence.greatest:
        reason = "max must be greater than or equal to min"
    elif not sequence.least <= sequence.start <= sequence.greatest:
        reason = "start must be between min and max"
    else:
        return
    raise ClientError(code, f"Failed to {verb} sequence '{name}': {reason}")


def _cannot_drop_sequence(name: str, reason: str) -> ClientError:
    return ClientError(errors.DROP_SEQUENCE, f"Can't drop sequence '{name}': {reason}")


def _sequence_use(state: DatabaseState, space_id: int) -> SequenceUse | None:
    row = state.row(system.SPACE_SEQUENCE_ID, space_id)
    return None if row is None else _read_sequence_use(row)


def _read_sequence_use(row: list[Any]) -> SequenceUse:
    return SequenceUse(row[1], row[3] if len(row) > 3 else 0, bool(row[2]))


def _on_space_sequence(state: DatabaseState, old: CatalogueFields, new: CatalogueFields) -> None:
    row = new if new is not None else old
    assert row is not None
    space = state.own_space(row[0])
    if space is None:
        raise ClientError(ErrorCode.NO_SUCH_SPACE, f"Space '{row[0]}' does not exist")
    use = None
    if old is not None and new is not None:
        raise ClientError(ErrorCode.UNSUPPORTED, 'space "_space_sequence" does not support update')
    if new is not None:
        if state.row(system.SEQUENCE_ID, new[1]) is None:
            raise sequences.no_such_sequence(new[1])
        use = _read_sequence_use(new)
        space.index(0)
        primary = space.index_defs[0]
        if use.field not in [part.field for part in primary.parts]:
            raise rows.index_error(
                primary.name, space.name, "sequence field must be a part of the index"
            )
    state.set_space(space.id, SpaceData(space.definition, space.index_defs, space.indexes, use))


# --- users and unsupported features ---------------------------------------------------------------


def _on_user(state: DatabaseState, old: CatalogueFields, new: CatalogueFields) -> None:
    if new is not None:
        _check_user(new, is_new=old is None)
        return
    assert old is not None
    user_id, name = old[0], old[2]
    if user_id in (system.GUEST, system.ADMIN, system.PUBLIC, system.REPLICATION, system.SUPER):
        raise _cannot_drop_user(name, "the user or the role is a system")
    owned = (system.SPACE_ID, system.SEQUENCE_ID, system.FUNC_ID)
    if any(next(state.rows_with(space_id, 1, user_id), None) for space_id in owned):
        raise _cannot_drop_user(name, "the user has objects")
    if next(state.rows_with(system.PRIV_ID, 0, user_id), None):
        raise _cannot_drop_user(name, "the user has objects")
    if grants.is_granted(state, "role", user_id):
        raise _cannot_drop_user(name, "the role is granted to a user")


def _cannot_drop_user(name: str, reason: str) -> ClientError:
    return ClientError(ErrorCode.DROP_USER, f"Failed to drop user or role '{name}': {reason}")


def _check_user(row: list[Any], is_new: bool) -> None:
    user_id, _, name, kind = row[:4]
    if rows.is_too_long(name):
        raise ClientError(
            ErrorCode.CREATE_USER,
            f"Failed to create user '{rows.shortened(name)}': user name is too long",
        )
    failed = ClientError(
        ErrorCode.CREATE_USER, f"Failed to create user '{name}': invalid user password"
    )
    if kind.lower() not in ("user", "role"):
        raise ClientError(
            ErrorCode.CREATE_USER, f"Failed to create user '{name}': unknown user type"
        )
    if is_new:
        rows.check_name(name)
    auth = row[4] if len(row) > 4 else {}
    if not isinstance(auth, dict):
        raise failed
    password = auth.get("chap-sha1")
    if password is None:
        return
    if kind.lower() == "role":
        raise ClientError(
            ErrorCode.CREATE_ROLE,
            f"Failed to create role '{name}': authentication data can not be set for a role",
        )
    if password == "":
        return
    if not isinstance(password, str) or len(password) != grants.PASSWORD_HASH_LENGTH:
        raise failed
    if user_id == system.GUEST and password != EMPTY_PASSWORD_HASH:
        raise ClientError(
            ErrorCode.GUEST_USER_PASSWORD, "Setting password for guest user has no effect"
        )


def _on_priv(state: DatabaseState, old: CatalogueFields, new: CatalogueFields) -> None:
    if new is not None:
        grants.check_object_exists(state, new)
        if grants.is_about_a_role(new):
            _check_loop(state, new)
        if new[4] == 0:
            raise grants.wrong_grant("the grant tuple has no privileges")


def _on_func(state: DatabaseState, old: CatalogueFields, new: CatalogueFields) -> None:
    if new is None:
        assert old is not None
        if grants.is_granted(state, "function", old[0]):
            raise ClientError(
                errors.DROP_FUNCTION, f"Can't drop function {old[0]}: function has grants"
            )


def _check_loop(state: DatabaseState, row: list[Any]) -> None:
    if _reaches(state, row[3], row[1]):
        granted, grantee = (grants.user_name(state, user_id) for user_id in (row[3], row[1]))
        raise ClientError(
            errors.ROLE_LOOP, f"Granting role '{granted}' to role '{grantee}' would create a loop"
        )


def _reaches(state: DatabaseState, role_id: int, target: int) -> bool:
    """Return whether `target` is the role or holds it through any chain of grants."""
    if role_id == target:
        return True
    granted = filter(grants.is_about_a_role, state.rows_with(system.PRIV_ID, 0, role_id))
    return any(_reaches(state, row[3], target) for row in granted)


def _refuse(what: str) -> Callable[[DatabaseState, CatalogueFields, CatalogueFields], None]:
    def handler(_state: DatabaseState, _old: CatalogueFields, new: CatalogueFields) -> None:
        if new is not None:
            raise ClientError(
                ErrorCode.UNSUPPORTED, f"Qsync does not support {what}: see docs/compatibility.md"
            )

    return handler


_HANDLERS: dict[int, Callable[[DatabaseState, CatalogueFields, CatalogueFields], None]] = {
    system.SPACE_ID: _on_space,
    system.INDEX_ID: _on_index,
    system.TRUNCATE_ID: _on_truncate,
    system.SEQUENCE_ID: _on_sequence,
    system.SPACE_SEQUENCE_ID: _on_space_sequence,
    system.USER_ID: _on_user,
    system.PRIV_ID: _on_priv,
    system.FUNC_ID: _on_func,
    system.TRIGGER_ID: _refuse("SQL triggers"),
    system.FK_CONSTRAINT_ID: _refuse("foreign keys"),
    system.CK_CONSTRAINT_ID: _refuse("check constraints"),
    system.FUNC_INDEX_ID: _refuse("functional indexes"),
    system.SESSION_SETTINGS_ID: _refuse("session settings"),
}
