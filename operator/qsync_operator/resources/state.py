"""The durable state of one cluster, stored in a Secret that is kept as long as the data.

Each part is written before it is used. The replica set's uuid is written before the first node
starts, the founder before the bootstrap order, and a member's incarnation before its pod. All other
state can be observed.
"""

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from qsync_operator.api.names import MemberKind

STATE_KEY = "state.json"
TLS_IMAGES_MAX = 16


@dataclass(frozen=True, slots=True)
class MemberState:
    """A member with a place in the cluster; `role` differs from `kind` for a registered reader."""

    kind: MemberKind
    role: str = ""
    uuid: str = ""
    incarnation: int = 0
    unknown: dict[str, Any] = field(default_factory=dict)  # fields of another version, kept


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The content of the Secret NAME-identity."""

    replicaset_uuid: str
    secret: str
    image: str = ""  # of nodes at creation: an upgrade of the operator restarts no member
    bootstrap_member: str = ""
    bootstrap_uuid: str = ""
    is_formed: bool = False
    members: dict[str, MemberState] = field(default_factory=dict)
    fenced: tuple[str, ...] = ()  # by annotation
    tls_images: tuple[str, ...] = ()  # images that answered over TLS on the admin port, newest last
    incarnations: dict[str, int] = field(default_factory=dict)  # number of removals of each name
    unknown: dict[str, Any] = field(default_factory=dict)  # fields of another version, kept
    unknown_keys: dict[str, str] = field(default_factory=dict)  # keys of another version, kept

    def of_kind(self, kind: MemberKind) -> list[str]:
        return [name for name, member in self.members.items() if member.kind == kind]

    # --- changes --------------------------------------------------------------------------------

    def with_member(self, name: str, kind: MemberKind) -> "ClusterState":
        """Add a member, or replace it by a new instance under its name."""
        member = MemberState(kind, incarnation=self.incarnations.get(name, 0))
        return replace(self, members={**self.members, name: member})

    def without_member(self, name: str) -> "ClusterState":
        rest = {other: member for other, member in self.members.items() if other != name}
        taken = self.incarnations.get(name, 0) + 1
        return replace(self, members=rest, incarnations={**self.incarnations, name: taken})

    def with_instance(self, name: str, uuid: str, role: str = "") -> "ClusterState":
        member = replace(self.members[name], uuid=uuid, role=role or self.members[name].role)
        return replace(self, members={**self.members, name: member})

    def founded_by(self, name: str, uuid: str) -> "ClusterState":
        return replace(self, bootstrap_member=name, bootstrap_uuid=uuid)

    def formed(self) -> "ClusterState":
        return replace(self, is_formed=True)

    def with_fenced(self, members: tuple[str, ...]) -> "ClusterState":
        return replace(self, fenced=members)

    def with_tls_images(self, images: Collection[str]) -> "ClusterState":
        """Add images whose members answered over TLS; statuses of these are read over TLS only."""
        new = sorted(set(images) - {"", *self.tls_images})
        return replace(self, tls_images=(*self.tls_images, *new)[-TLS_IMAGES_MAX:])

    # --- as a Secret ----------------------------------------------------------------------------

    def strings(self) -> dict[str, str]:
        document = asdict(self)
        kept = document.pop("unknown_keys")
        document |= document.pop("unknown")
        for member in document["members"].values():
            member |= member.pop("unknown")
        uuid, secret = document.pop("replicaset_uuid"), document.pop("secret")
        state = json.dumps(document, sort_keys=True)
        return {**kept, "replicasetUUID": uuid, "secret": secret, STATE_KEY: state}

    @classmethod
    def from_strings(cls, strings: dict[str, str]) -> "ClusterState":
        """Read the state from the values of the Secret.

        Raises:
            KeyError: a required value is missing.
            TypeError: a field has another type.
            ValueError: the state is not JSON.
        """
        document = json.loads(strings.get(STATE_KEY, "{}"))
        members = {name: _member(one) for name, one in document.pop("members", {}).items()}
        fenced = tuple(document.pop("fenced", ()))
        tls_images = tuple(document.pop("tls_images", ()))
        known, unknown = _sorted_out(cls, document)
        own = {"replicasetUUID", "secret", STATE_KEY}
        return cls(
            **known,
            unknown=unknown,
            fenced=fenced,
            tls_images=tls_images,
            replicaset_uuid=strings["replicasetUUID"],
            secret=strings["secret"],
            members=members,
            unknown_keys={key: text for key, text in strings.items() if key not in own},
        )


def _member(document: dict[str, Any]) -> MemberState:
    known, unknown = _sorted_out(MemberState, document)
    return MemberState(**known, unknown=unknown)


def _sorted_out(kind: type, document: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the known fields and the unknown ones, which are kept for the other version."""
    names = {one.name for one in fields(kind)} - {"unknown", "unknown_keys"}
    known = {key: value for key, value in document.items() if key in names}
    return known, {key: value for key, value in document.items() if key not in names}
