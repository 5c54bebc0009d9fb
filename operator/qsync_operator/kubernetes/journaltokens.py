"""Tokens for the operator's own requests to brokers, signed with the keys of a Secret."""

import time

from qsync_broker.auth import Authorizer, Capability
from qsync_operator.api.cluster import QsyncCluster
from qsync_operator.kubernetes.api import Api, ApiError
from qsync_operator.resources.brokers import KEYS
from qsync_operator.resources.secrets import text_of

READ_AGAIN_S = 30.0
TOKEN_S = 600
"""Validity of a token, which is renewed with each read of the Secret."""


class JournalTokens:
    """Tokens of one cluster."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api = api
        self._namespace = namespace
        self._name: str | None = None
        self._read_s = 0.0
        self.token = ""
        self.problem = ""

    async def reconcile(self, cluster: QsyncCluster) -> None:
        """Set `token` for requests that list journals, "" if brokers want none.

        `problem` is why there is none, or "". If the API server cannot be reached, both stay.
        """
        spec = cluster.spec.journals
        name = spec.auth_keys_secret if spec is not None else None
        if name is None:
            self._name, self.token, self.problem = None, "", ""
            return
        if name == self._name and time.monotonic() - self._read_s < READ_AGAIN_S:
            return
        try:
            text = text_of(await self._api.get("Secret", self._namespace, name), KEYS)
        except ApiError:
            return
        self._name, self._read_s = name, time.monotonic()
        self.token, self.problem = "", ""
        if text is None:
            self.problem = (
                f"Secret {name} of journals.authKeysSecret has no value {KEYS}: create it with keys"
                " in Base64, separated by spaces"
            )
            return
        try:
            authorizer = Authorizer.of_text(text)
        except ValueError as error:
            self.problem = f"Secret {name} of journals.authKeysSecret: {error}; correct {KEYS}"
            return
        if authorizer.keys:
            self.token = authorizer.sign(Capability.LIST, {}, TOKEN_S)
