"""Brokers and journals of a local cluster, as its web page observes them."""

import asyncio
import ssl
from dataclasses import replace
from pathlib import Path

from qsync_broker import auth
from qsync_local.ports import HOST
from qsync_local.store import ClusterFiles
from qsync_operator.members.brokerlinks import BrokerLinks
from qsync_operator.plan.journalview import journals_of
from qsync_web.journals import JOURNALS_MAX, PageJournals

TOKEN_S = 60
"""Validity of a token, which is issued for each observation."""


class LocalBrokers:
    """The brokers of one cluster."""

    def __init__(self, store: ClusterFiles) -> None:
        self._store = store
        self._links = BrokerLinks(self._context)

    def _context(self) -> ssl.SSLContext:
        """Return the context of connections to brokers with TLS.

        Raises:
            OSError: the authorities of the brokers cannot be read.
        """
        return ssl.create_default_context(cafile=self._store.broker_certificates / "ca.crt")

    async def close(self) -> None:
        await self._links.close()

    @property
    def exist(self) -> bool:
        """Return whether the cluster has brokers."""
        return bool(self._store.load_brokers())

    async def observe(self, part: str) -> PageJournals:
        """Return the brokers, and journals whose names contain `part`."""
        cluster = self._store.load_cluster()
        spec = cluster.spec.journals if cluster is not None else None
        scheme = "https" if spec is not None and spec.tls else "http"
        token, problem = "", ""
        if spec is not None and spec.auth_keys_file:
            try:
                token = await asyncio.to_thread(_token, Path(spec.auth_keys_file))
            except (OSError, ValueError) as error:
                cause = (error.strerror if isinstance(error, OSError) else None) or str(error)
                problem = (
                    "The journals cannot be listed: spec.journals.authKeysFile"
                    f" {spec.auth_keys_file} cannot be used: {cause}; correct the file or the path."
                )
        urls = {
            name: f"{scheme}://{HOST}:{record.http}"
            for name, record in self._store.load_brokers().items()
        }
        uuid = self._store.load_state().replicaset_uuid
        answers = await self._links.observe(urls, part, JOURNALS_MAX, token=token, cluster=uuid)
        return replace(journals_of(answers), note=problem)


def _token(path: Path) -> str:
    """Return a token that permits to list journals.

    Raises:
        OSError, ValueError: the keys cannot be used.
    """
    authorizer = auth.Authorizer.of_text(path.read_text())
    return authorizer.sign(auth.Capability.LIST, {}, TOKEN_S) if authorizer.keys else ""
