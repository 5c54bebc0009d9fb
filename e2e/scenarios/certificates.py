"""TLS between members and, on request, for clients; certificates change meanwhile."""

import contextlib
import json
import socket
import ssl
import time
from base64 import b64decode
from datetime import UTC, datetime

from e2e.clients import forwarded
from e2e.scenario import Scene, Wrong, scenario
from e2e.timeouts import CHANGE_PAUSE_MS, CONVERGE_S, LATE_S, READY_S, ROLL_S
from qsync_operator.resources.authority import renew

PLAIN, TLS = 3301, 3302


def _secret(scene: Scene, name: str) -> dict[str, str]:
    found = scene.get("secret", name)["data"]
    return {key: b64decode(value).decode() for key, value in found.items()}


def _shown(address: str, authorities: str) -> bytes:
    """Return the certificate that a member presents to a client. Raises OSError."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cadata=authorities)
    with (
        socket.create_connection((host, int(port)), CONVERGE_S) as plain,
        context.wrap_socket(plain, server_hostname="orders-leader") as secure,
    ):
        if not secure.recv(9).startswith(b"Tarantool"):
            raise Wrong(f"{address} answers with TLS instead of IPROTO")
        return secure.getpeercert(binary_form=True) or b""


def _is_shown(scene: Scene, authorities: str, pem: str) -> bool:
    """Return whether every member presents this certificate."""
    wanted = ssl.PEM_cert_to_DER_cert(pem.strip())
    with forwarded(scene, sorted(scene.pods()), TLS) as addresses:
        for address in addresses:
            with contextlib.suppress(OSError):
                if _shown(address, authorities) == wanted:
                    continue
            return False
    return True


def _members_connect_by_tls(scene: Scene) -> bool:
    """Return whether the kernel of orders-0 lists connections on the TLS port to its peers."""
    script = (
        "import re\n"
        "lines = open('/proc/net/tcp').read() + open('/proc/net/tcp6').read()\n"
        "peers = re.findall(r'[0-9A-F]+:([0-9A-F]{4}) [0-9A-F]+:([0-9A-F]{4}) 01', lines)\n"
        f"print(sum(int(p, 16) == {TLS} for pair in peers for p in pair))\n"
    )
    return int(scene.kubectl("exec", "orders-0", "--", "python", "-c", script)) >= 2


@scenario(load=True, not_local="TLS")
def certificates(scene: Scene) -> str:
    """Certificate and authority are renewed under load, and no member restarts."""
    assert _members_connect_by_tls(scene)
    pods, at_s = scene.pods(), time.time()
    before = _secret(scene, "orders-tls")
    trusted = _secret(scene, "orders-app")["ca.crt"]
    assert _is_shown(scene, trusted, before["tls.crt"])
    scene.kubectl("delete", "secret", "orders-tls")
    scene.wait("another one", lambda: _has(scene, "orders-tls"), CONVERGE_S)
    after = _secret(scene, "orders-tls")
    assert after["tls.crt"] != before["tls.crt"]
    took_s = scene.wait("it shown", lambda: _is_shown(scene, trusted, after["tls.crt"]), ROLL_S)
    scene.kubectl("delete", "secret", "orders-ca")
    scene.wait("another authority", lambda: _has(scene, "orders-ca"), CONVERGE_S)
    scene.wait(
        "both trusted",
        lambda: _secret(scene, "orders-app")["ca.crt"].count("BEGIN CERTIFICATE") == 2,
        CONVERGE_S,
    )
    assert _secret(scene, "orders-tls")["tls.crt"] == after["tls.crt"], (
        "certificate announced but not used"
    )
    leader = scene.current_leader()
    scene.kubectl("delete", "pod", leader, "--grace-period=0", "--force")
    scene.wait("a pod", lambda: scene.is_new_and_ready(leader, pods[leader]), CONVERGE_S)
    scene.wait("three nodes", lambda: scene.is_ready(3), CONVERGE_S)
    kept = {name: uid for name, uid in scene.pods().items() if name != leader}
    assert kept == {name: uid for name, uid in pods.items() if name != leader}
    time.sleep(LATE_S)  # late requests count as an outage as well
    what = "certificates changed, then the leader deleted by force"
    pauses = scene.measure(what, at_s, CHANGE_PAUSE_MS)
    return (
        f"all members presented a new certificate after {took_s:.0f} s; writes paused for {pauses}"
    )


def _has(scene: Scene, name: str) -> bool:
    return bool(scene.kubectl("get", "secret", name, "--ignore-not-found"))


@scenario(modest=True, not_local="TLS")
def given_certificates(scene: Scene) -> str:
    """A missing Secret is reported; once it exists, it is used, and so are its changes."""
    names = ["orders-leader", "*.orders", f"*.orders.{scene.name}.svc"]
    bundles = [renew(None, None, "orders", names, datetime.now(UTC))[1] for _ in range(2)]
    given = [
        {"ca.crt": one.authorities, "tls.crt": one.certificate, "tls.key": one.key}
        for one in bundles
    ]
    scene.apply(tls={"secretName": "mine", "clients": "Require"})
    scene.wait("it", scene.has_reason("Degraded", "CertificateRefused"), CONVERGE_S)
    said = scene.condition("Degraded")["message"]
    _put(scene, given[0])
    scene.wait("three nodes", lambda: scene.is_ready(3), READY_S)
    with forwarded(scene, ["orders-0"], PLAIN) as addresses:
        _shown(addresses[0], given[0]["ca.crt"])
        host, _, port = addresses[0].rpartition(":")
        with socket.create_connection((host, int(port)), CONVERGE_S) as plain:
            plain.settimeout(LATE_S)
            with contextlib.suppress(TimeoutError):
                assert not plain.recv(9), "a client without TLS received a greeting"
    pods = scene.pods()
    both = given[1] | {"ca.crt": given[1]["ca.crt"] + given[0]["ca.crt"]}
    _put(scene, both)
    scene.wait("it", lambda: _is_shown(scene, both["ca.crt"], both["tls.crt"]), ROLL_S)
    assert scene.pods() == pods, "no member restarts"
    return f"{said}; the members then used the certificate, and the next one without a restart"


def _put(scene: Scene, strings: dict[str, str]) -> None:
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "mine"},
        "stringData": strings,
    }
    scene.kubectl("apply", "-f", "-", stdin=json.dumps(secret))
