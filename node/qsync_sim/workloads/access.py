"""Users, grants, roles and passwords.

An administrator grants and revokes privileges, changes passwords, and drops and recreates a user.
Sessions of the users write and read, and log in at members. Each answer must follow from the
privileges at its index of the order.
"""

from base64 import b64encode
from typing import Any

from qsync_client.protocol.access import Privilege
from qsync_client.protocol.spaces import SystemSpace
from qsync_node.errors import ErrorCode
from qsync_node.format.keys import (
    DELETE,
    INSERT,
    KEY_SPACE_ID,
    KEY_TXN_ISOLATION,
    REPLACE,
    SELECT,
    UPDATE,
)
from qsync_sim.cluster import Cluster
from qsync_sim.workloads.base import Script, Workload, WorkloadRequest, body_of
from qsync_sim.workloads.checks import CIRCUMSTANCES, LINEARIZABLE
from qsync_sim.workloads.order import PRIVILEGES, USERS, ConfirmedOrder
from qsync_sim.workloads.table import GE

SPACE = 630
USER_IDS = {"reader": 40, "writer": 41}
ROLE = 42
READ, WRITE, EXECUTE = int(Privilege.READ), int(Privilege.WRITE), int(Privilege.EXECUTE)
LOG_IN, USAGE = int(Privilege.SESSION), int(Privilege.USAGE)
KEYS = 6
ORDERS, USES = 13, 15
BEAT_MS = 100
DENIED, NO_SUCH_USER = int(ErrorCode.ACCESS_DENIED), int(ErrorCode.NO_SUCH_USER)


class Access(Workload):
    """Requests of users whose privileges change."""

    name = "access"
    number = 6

    def __init__(self, world: Cluster) -> None:
        super().__init__(world)
        self.log_ins: list[tuple[str, str, int, bool]] = []

    def set_up(self) -> None:
        """Create a space, a role that can write it, and both users without privileges on it."""
        world = self.world
        world.insert(SystemSpace.SPACE, [SPACE, 1, f"s{SPACE}", "memtx", 0, {}, []])
        world.insert(SystemSpace.INDEX, [SPACE, 0, "key", "tree", {}, [[0, "unsigned"]]])
        world.insert(USERS, [ROLE, 1, "editors", "role", {}])
        world.insert(PRIVILEGES, [1, ROLE, "space", SPACE, READ | WRITE])
        for name, number in USER_IDS.items():
            world.insert(USERS, [number, 1, name, "user", _password(0)])
            world.insert(PRIVILEGES, [1, number, "universe", 0, LOG_IN | USAGE])

    def scripts(self) -> list[Script]:
        return [self._administer(), self._use("reader"), self._use("writer"), self._use("writer")]

    # --- requests -----------------------------------------------------------------------------

    def _administer(self) -> Script:
        rng = self.rng
        for _ in range(ORDERS):
            yield rng.choice([0, 200, 600]) + self.until_beat(BEAT_MS)
            name = rng.choice(list(USER_IDS))
            number = USER_IDS[name]
            kind = rng.choice(["grant", "grant", "revoke", "role", "password", "drop"])
            if kind == "grant":
                bits = rng.choice([READ, WRITE, READ | WRITE])
                yield self._put(kind, REPLACE, PRIVILEGES, [1, number, "space", SPACE, bits])
            elif kind == "revoke":
                what = rng.choice([["space", SPACE], ["space", SPACE], ["role", ROLE]])
                yield self._delete(kind, PRIVILEGES, [number, *what])
            elif kind == "role":
                yield self._put(kind, REPLACE, PRIVILEGES, [1, number, "role", ROLE, EXECUTE])
            elif kind == "password":
                ops = [["=", 4, _password(len(self.requests))]]
                body = body_of(space=USERS, index=0, key=[number], tuple=ops)
                yield self.sent(WorkloadRequest(kind, UPDATE, body))
            else:
                yield from self._recreate(name, number)

    def _recreate(self, name: str, number: int) -> Script:
        """Drop a user with all its privileges, and create it again after a while."""
        for what in (["space", SPACE], ["role", ROLE], ["universe", 0]):
            yield self._delete("revoke", PRIVILEGES, [number, *what])
        yield self._delete("drop user", USERS, [number])
        yield self.rng.choice([0, 300])
        row = [number, 1, name, "user", _password(len(self.requests))]
        yield self._put("create user", INSERT, USERS, row)
        row = [1, number, "universe", 0, LOG_IN | USAGE]
        yield self._put("grant", REPLACE, PRIVILEGES, row)

    def _put(self, kind: str, row_type: int, space: int, row: list[Any]) -> WorkloadRequest:
        return self.sent(WorkloadRequest(kind, row_type, body_of(space=space, tuple=row)))

    def _delete(self, kind: str, space: int, key: list[Any]) -> WorkloadRequest:
        return self.sent(WorkloadRequest(kind, DELETE, body_of(space=space, index=0, key=key)))

    def _use(self, user: str) -> Script:
        rng = self.rng
        for _ in range(USES):
            self._log_in(user)
            yield rng.choice([0, 0, 300]) + (self.until_beat(BEAT_MS) if rng.random() < 0.6 else 0)
            if rng.random() < 0.4:
                isolation = rng.choice([0, LINEARIZABLE])
                body = body_of(space=SPACE, key=[], iterator=GE, limit=100, isolation=isolation)
                yield self.sent(WorkloadRequest("read", SELECT, body, user=user))
            else:
                tag = self.new_tag()
                body = body_of(space=SPACE, tuple=[rng.randrange(KEYS), tag])
                yield self.sent(WorkloadRequest("write", REPLACE, body, tag, user=user))

    def _log_in(self, user: str) -> None:
        """Note whether a member accepts the password of a user at its confirmed index."""
        # The state of a member in repair is that of an earlier index (T7).
        nodes = [shell.node for shell in self.world.alive() if not shell.settings.spaces]
        sound = [node for node in nodes if node is not None and not node.replica.repair.is_open]
        if not sound:
            return
        node = self.rng.choice(sound)
        found = node.database.user_by_name(user)
        password = found.password_hash or "" if found is not None else ""
        may_log_in = found is not None and bool(found.universe & LOG_IN)
        index = node.context.limbo.confirmed_index
        self.log_ins.append((user, password, index, may_log_in))

    # --- checks -------------------------------------------------------------------------------

    def check(self, order: ConfirmedOrder) -> None:
        """Check all answers to users, and all log-ins (P3, T6, R1)."""
        for request in self.requests:
            if request.user == "admin":
                self._check_order(order, request)
            elif request.type == SELECT:
                self._check_read(order, request)
            else:
                self._check_write(order, request)
        for log_in in self.log_ins:
            self._check_log_in(order, *log_in)

    def _check_order(self, order: ConfirmedOrder, request: WorkloadRequest) -> None:
        """Check that a committed change of users and grants is in the order."""
        if request.outcome != "committed":
            return
        row = order.rows.get(request.index)
        is_logged = row is not None and (row.type, row.space) == (
            request.type,
            request.fields[KEY_SPACE_ID],
        )
        if request.tuples and not is_logged and request.type != UPDATE:
            self.fail(request, f"L3: another row is at {request.index}")
        self.world.count(f"access: {request.kind}")

    def _check_write(self, order: ConfirmedOrder, request: WorkloadRequest) -> None:
        places = order.places.get(request.tag, [])
        if len(places) > 1:
            self.fail(request, f"T9: its row was confirmed at {places}")
        if request.outcome in ("rolled back", "refused") and places:
            self.fail(request, f"T6: it is in the order at {places[0]}")
        if places and _error(order, places[0] - 1, request.user, WRITE):
            self.fail(request, f"P3: the user had no right to write at {places[0]}")
        if request.outcome == "committed":
            if places != [request.index]:
                self.fail(request, f"L3: its row is at {places}")
            self.world.count("access: writes accepted")
        elif request.outcome == "refused" and request.code not in CIRCUMSTANCES:
            if request.code != _error(order, request.index, request.user, WRITE):
                self.fail(
                    request, f"P3: the user may write at {request.index}, or the error is wrong"
                )
            self.world.count(f"access: {_NAMES[request.code]}")

    def _check_read(self, order: ConfirmedOrder, request: WorkloadRequest) -> None:
        """Check that some state that the read may show allows its answer."""
        if request.outcome not in ("committed", "refused") or request.code in CIRCUMSTANCES:
            return
        is_strict = request.fields[KEY_TXN_ISOLATION] == LINEARIZABLE
        first = request.floor_index if is_strict else 0
        for at in range(request.ceiling_index, first - 1, -1):
            if _error(order, at, request.user, READ) == request.code and (
                request.code or order.at(SPACE, at).select(request.fields).tuples == request.tuples
            ):
                break
        else:
            self.fail(request, f"P3: no state since {first} allows this")
        what = "reads refused" if request.code else "reads accepted"
        self.world.count(f"access: {what}")

    def _check_log_in(
        self, order: ConfirmedOrder, user: str, password: str, index: int, may_log_in: bool
    ) -> None:
        row = _user_row(order, index, user)
        expected = row[4]["chap-sha1"] if row is not None else ""
        allowed = row is not None and bool(_bits(order, index, row[0], "universe", 0) & LOG_IN)
        if (password, may_log_in) != (expected, allowed):
            reason = f"P3: {user} has password {password!r} and {may_log_in} at {index}"
            self.fail(self.requests[0], f"{reason}, not {expected!r} and {allowed}")
        self.world.count("access: log-ins checked")


_NAMES = {DENIED: "writes refused", NO_SUCH_USER: "writes of dropped users refused"}


def _password(number: int) -> dict[str, str]:
    """Return the authentication data of a user: a hash has 28 characters."""
    return {"chap-sha1": b64encode(number.to_bytes(20, "big")).decode()}


def _user_row(order: ConfirmedOrder, index: int, name: str) -> list[Any] | None:
    rows = order.at(USERS, index).rows.values()
    return next((row for row in rows if row[2] == name), None)


def _bits(order: ConfirmedOrder, index: int, grantee: int, object_type: str, object_id: int) -> int:
    """Return the privileges of a user or role on an object, with those of its roles."""
    bits = 0
    for row in order.at(PRIVILEGES, index).rows.values():
        if row[1] != grantee:
            continue
        if row[2:4] == [object_type, object_id]:
            bits |= row[4]
        elif row[2] == "role" and row[4] & EXECUTE:
            bits |= _bits(order, index, row[3], object_type, object_id)
    return bits


def _error(order: ConfirmedOrder, index: int, name: str, privilege: int) -> int:
    """Return the code with which a request must be refused after the row at `index`, or 0."""
    row = _user_row(order, index, name)
    if row is None:
        return NO_SUCH_USER
    wanted = USAGE & ~_bits(order, index, row[0], "universe", 0)
    return DENIED if wanted or privilege & ~_bits(order, index, row[0], "space", SPACE) else 0
