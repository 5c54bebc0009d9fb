"""Validation rules in CEL, each with the message for the author of the manifest.

The models check the same and more (`api/spec.py`): they parse the formula of a quorum, for
example. These rules are the ones that the API server can check. So `kubectl apply` reports an error
at once, rather than a condition later.
"""

from typing import Any

from qsync_operator.api.cluster import NAME_MIN, SHORT_NAME
from qsync_operator.api.ports import (
    DEFAULT_ADMIN,
    DEFAULT_BROKER,
    DEFAULT_IPROTO,
    DEFAULT_TLS,
    PEER_PORT,
)
from qsync_operator.api.spec import REGISTERED_MAX

Rule = dict[str, Any]


def rule(expression: str, message: str) -> Rule:
    """Return a rule with a fixed message.

    The API server estimates the cost of a message with numbers without evaluating it, and the
    estimate exceeds the limit.
    """
    return {"rule": " ".join(expression.split()), "message": message}


def name_rule(pattern: str) -> Rule:
    return rule(
        f"self.metadata.name.matches('{pattern}')",
        "metadata.name must have at most 40 lower-case letters, digits and hyphens, and "
        "begin with a letter: the names of pods and Jobs contain it",
    )


RESERVED_SUFFIXES = ("async", "reader", "leader", "primary", "replicas", "journals", "spark")
"""Suffixes that belong to StatefulSets, Services and ServiceAccounts of other clusters."""

CREATION = [
    {
        **rule(
            f"""oldSelf.hasValue()
                || !self.metadata.name.matches('-({"|".join(RESERVED_SUFFIXES)})$')""",
            f"metadata.name cannot end with {', '.join(f'-{one}' for one in RESERVED_SUFFIXES)}:"
            " objects of other clusters have such names",
        ),
        # Existing clusters are exempt.
        "optionalOldSelf": True,
    }
]

_PORTS = {"iproto": DEFAULT_IPROTO, "admin": DEFAULT_ADMIN, "tls": DEFAULT_TLS}


def _differs(name: str, default: int) -> str:
    """Return the condition that `port` differs from a port of the members."""
    return f"port != (has(self.ports) && has(self.ports.{name}) ? self.ports.{name} : {default})"


QUORUM = "self.replication.quorum"
HAS_NUMBER = f"has(self.replication) && has({QUORUM}) && type({QUORUM}) == int"

CLUSTER_SPEC = [
    rule(
        "!has(self.journals) || !has(self.journals.authKeysFile)",
        "journals.authKeysFile is not supported on Kubernetes, because it names a file of a local"
        " machine: name a Secret in journals.authKeysSecret",
    ),
    rule(
        """!has(self.journals) || !self.journals.enabled || self.journals.tls
           || !has(self.tls) || self.tls.clients != 'Require'""",
        "tls.clients is Require, so that all ports require TLS: set journals.tls as well",
    ),
    rule(
        f"""!has(self.journals) || !self.journals.enabled ||
            [self.journals.port == 0 ? {DEFAULT_BROKER} : self.journals.port, {PEER_PORT}].all(port,
            {" && ".join(_differs(name, port) for name, port in _PORTS.items())})
            && self.journals.port != {PEER_PORT}""",
        f"journals.port (by default {DEFAULT_BROKER}) and {PEER_PORT}, at which brokers connect"
        " to each other, must differ from the ports of members",
    ),
    rule(
        f"self.replicas + self.asyncReplicas <= {REGISTERED_MAX}",
        f"at most {REGISTERED_MAX} members can be registered: the sum of replicas and "
        "asyncReplicas is larger",
    ),
    rule(
        f"!({HAS_NUMBER}) || {QUORUM} >= self.replicas / 2 + 1",
        "replication.quorum is below a majority of the replicas: two halves could confirm"
        " different writes",
    ),
    rule(
        f"!({HAS_NUMBER}) || {QUORUM} <= self.replicas",
        "replication.quorum exceeds the number of replicas: it can never be reached",
    ),
    rule(
        f"!has(self.replication) || !has({QUORUM}) || type({QUORUM}) == int || {QUORUM}.matches("
        r"'^(majority|(N|[0-9]{1,4})( *[-+*/] *(N|[0-9]{1,4}))*)$')",
        "replication.quorum is invalid: write majority, a number, or a formula such as N/2+1",
    ),
    rule(
        """has(self.ports) == has(oldSelf.ports)
           && (!has(self.ports) || self.ports == oldSelf.ports)""",
        "ports cannot change: members connect to each other by them",
    ),
    rule(
        """has(self.bootstrap) == has(oldSelf.bootstrap)
           && (!has(self.bootstrap) || self.bootstrap == oldSelf.bootstrap)""",
        "bootstrap cannot change: it describes the initial state of the cluster",
    ),
    rule(
        """!has(self.bootstrap) || !has(self.archive)
           || self.bootstrap.fromArchive.url != self.archive.url""",
        "bootstrap.fromArchive.url equals archive.url: a new cluster needs its own archive",
    ),
    rule(
        "has(self.archive) || !(has(self.audit) || has(self.compaction))",
        "audit and compaction read the archive: set archive.url too",
    ),
]

_SIZE, _OLD_SIZE = "self.spec.storage.size", "oldSelf.spec.storage.size"
CLUSTER = [
    rule(
        f"""!has(self.spec.journals) || !self.spec.journals.enabled
            || self.metadata.name.size() >= {NAME_MIN}""",
        SHORT_NAME,
    ),
    # The status holds the actual size of the volumes. The comparison with it allows a user to
    # revert a size that the StorageClass refused.
    rule(
        f"""!has({_OLD_SIZE}) || !has({_SIZE})
            || quantity(string({_SIZE})).compareTo(quantity(string({_OLD_SIZE}))) >= 0
            || (has(oldSelf.status) && has(oldSelf.status.volumeSize)
                && isQuantity(oldSelf.status.volumeSize)
                && quantity(string({_SIZE})).compareTo(
                    quantity(oldSelf.status.volumeSize)) >= 0)""",
        "storage.size cannot shrink: volumes can only grow",
    ),
]

RESOURCES = [
    rule(
        """!has(self.requests) || !has(self.limits) || self.requests.all(name,
           !(name in self.limits)
           || quantity(string(self.requests[name])).compareTo(
               quantity(string(self.limits[name]))) <= 0)""",
        "resources.requests exceed resources.limits: no pod could be scheduled",
    ),
]

STORAGE = [
    rule(
        """has(self.storageClass) == has(oldSelf.storageClass)
           && (!has(self.storageClass) || self.storageClass == oldSelf.storageClass)""",
        "storage.storageClass cannot change: volumes keep the class that created them",
    ),
]

AUTH = [
    rule(
        "self.username == oldSelf.username",
        "auth.username cannot change: the database would keep the old user and its grants",
    ),
    rule(
        "!(self.username in ['admin', 'guest', 'public', 'replication', 'super', 'qsync_broker'])",
        "auth.username is reserved: choose another name",
    ),
]

FROM_ARCHIVE = [
    rule(
        "!(has(self.toTime) && has(self.toSignature))",
        "toTime and toSignature exclude each other: set one of them",
    ),
]

PORTS = [
    rule(
        """(!has(self.iproto) || !has(self.admin) || self.iproto != self.admin)
           && (!has(self.iproto) || !has(self.tls) || self.iproto != self.tls)
           && (!has(self.admin) || !has(self.tls) || self.admin != self.tls)""",
        "ports.iproto, ports.admin and ports.tls must be different ports",
    ),
]

SPACE = [
    rule(
        "!self.name.startsWith('_')",
        "names of spaces cannot begin with an underscore: such spaces belong to the database",
    ),
    rule(
        "!has(self.indexes[0].unique) || self.indexes[0].unique",
        "the first index is the primary key: it must be unique",
    ),
]

JOURNAL_SPEC = [
    rule(
        "self.cluster == oldSelf.cluster && self.journal == oldSelf.journal",
        "cluster and journal cannot change: create another QsyncJournal",
    ),
    rule(
        "self.journal.matches('^[-_+/.=%A-Za-z0-9]+$') && !self.journal.startsWith('/')"
        " && !self.journal.endsWith('/')",
        "journal must be a path of letters, digits and -_+.=% such as orders/eu",
    ),
]

RUN_SPEC = [
    rule("self == oldSelf", "spec cannot change: create another object"),
]
