"""The configuration of a broker, derived from the cluster's specification on every platform."""

from typing import Any, NamedTuple

from qsync_operator.api.spec import JournalsSpec
from qsync_operator.api.users import BROKER_USER


class BrokerPlace(NamedTuple):
    """Where one broker runs.

    Attributes:
        name: name of the broker, which is that of its member.
        data: directory of its spools.
        listen: HOST:PORT for clients.
        peer_listen: HOST:PORT for other brokers.
        address: HOST:PORT at which clients reach it.
        peer_address: HOST:PORT at which other brokers reach it.
        node: HOST:PORT of the local member.
        password: file with the password of the brokers' user.
        secret: file with the secret that brokers share.
    """

    name: str
    data: str
    listen: str
    peer_listen: str
    address: str
    peer_address: str
    node: str
    password: str
    secret: str


def broker_settings(
    spec: JournalsSpec, place: BrokerPlace, tls: dict[str, str] | None = None
) -> dict[str, Any]:
    """Return the content of a broker's configuration file.

    Args:
        spec: journals of the cluster.
        place: where the broker runs.
        tls: `cert`, `key` and `ca` of its certificate, or None if connections are plain.
    """
    return {
        "name": place.name,
        "data_dir": place.data,
        "listen": place.listen,
        "peer_listen": place.peer_listen,
        "endpoint": f"{'https' if tls is not None else 'http'}://{place.address}",
        "peer_address": place.peer_address,
        "node": place.node,
        "user": BROKER_USER,
        "password_file": place.password,
        "secret_file": place.secret,
        **({"auto_suspend": True} if spec.auto_suspend else {}),
        **({"tls": tls} if tls is not None else {}),
        **({"auth_keys_file": spec.auth_keys_file} if spec.auth_keys_file else {}),
    }
