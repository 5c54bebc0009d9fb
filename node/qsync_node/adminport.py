"""Requests and signed orders to the admin port of a node."""

import http.client
import json
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qsync_node.format.proofs import CHALLENGE_PATH, sign_order


@dataclass(frozen=True, slots=True)
class AdminPort:
    """The address of an admin port, and the means to authenticate. Orders need the secret."""

    address: str
    secret: str = ""
    context: ssl.SSLContext | None = None

    def get(self, path: str, timeout_s: float) -> tuple[int, str]:
        """Send a request, and return the HTTP status and the body of the answer.

        Raises:
            OSError: no answer arrived, or a step took longer than `timeout_s` seconds.
        """
        return self._ask("GET", path, None, {}, timeout_s)

    def post(self, path: str, body: bytes, timeout_s: float) -> tuple[int, str]:
        """Send a signed order, and return the HTTP status and the body of the answer.

        Raises:
            OSError: no answer arrived, or a step took longer than `timeout_s` seconds.
            ValueError: the address does not belong to a node.
        """
        status, text = self.get(CHALLENGE_PATH, timeout_s)
        given = json.loads(text) if status == 200 else None
        if not isinstance(given, dict):
            raise ValueError(
                f"unexpected response from {self.address}: no challenge for the order (HTTP "
                f"{status}); check the address"
            )
        challenge, instance = str(given.get("challenge", "")), str(given.get("instance", ""))
        signed = sign_order(self.secret, challenge, instance, "POST", path, body)
        headers = {"Authorization": signed, "Content-Type": "application/json"}
        return self._ask("POST", path, body, headers, timeout_s)

    def _ask(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], timeout_s: float
    ) -> tuple[int, str]:
        scheme = "http" if self.context is None else "https"
        request = urllib.request.Request(
            f"{scheme}://{self.address}{path}", data=body, method=method, headers=headers
        )
        # Connect directly: a proxy from the environment must not intercept this traffic.
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        if self.context is not None:
            handlers.append(urllib.request.HTTPSHandler(context=self.context))
        opener = urllib.request.build_opener(*handlers)
        try:
            return _answer(opener, request, timeout_s)
        except http.client.HTTPException as error:  # the answer is malformed or incomplete
            raise ConnectionError(f"unusable answer from {self.address}: {error}") from error


def _answer(
    opener: urllib.request.OpenerDirector, request: urllib.request.Request, timeout_s: float
) -> tuple[int, str]:
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            return answer.status, answer.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")


def trusting(ca: Path) -> ssl.SSLContext:
    """Return a context that trusts certificates signed by `ca`, for any name. Raises OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.load_verify_locations(ca)
    return context


def own_admin_port(document: dict[str, Any]) -> AdminPort:
    """Return the admin port of the local node that has this configuration. Raises OSError."""
    port = str(document["admin_listen"]).rpartition(":")[2]
    tls = document.get("tls")
    context = trusting(Path(tls["ca"])) if tls else None
    return AdminPort(f"127.0.0.1:{port}", str(document["secret"]), context)
