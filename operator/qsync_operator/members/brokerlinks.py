"""Reads the state of brokers of journals for the web page: bounded answers, and no changes."""

import asyncio
import json
import ssl
from collections.abc import Callable, Mapping

import aiohttp

from qsync_broker.auth import CLUSTER_HEADER
from qsync_operator.plan.journalview import BrokerAnswer, BrokerOverview, read_gauges

TIMEOUT_S = 2.0
ANSWER_BYTES_MAX = 4 << 20
"""Size of an answer that is read; brokers of earlier versions describe all journals at once."""


class BrokerLinks:
    """Connections to the brokers of clusters. The caller must close it."""

    def __init__(self, context: Callable[[], ssl.SSLContext | None]) -> None:
        """Prepare the links.

        Args:
            context: returns the TLS context of each request to a broker with TLS.
        """
        self._context = context
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def observe(
        self,
        brokers: Mapping[str, str],
        part: str,
        limit: int,
        *,
        token: str = "",
        cluster: str = "",
    ) -> dict[str, BrokerAnswer]:
        """Return the answer of each broker, asked concurrently.

        Args:
            brokers: URL of each broker, "" if it has none, by its name.
            part: part of the names of the wanted journals, or "".
            limit: number of journals.
            token: token that permits to list journals, or "".
            cluster: UUID of the cluster that brokers must belong to, or "" for any.
        """
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        query = {"limit": str(limit), "part": part}

        async def ask(url: str) -> BrokerAnswer:
            address = url.partition("://")[2]
            if not url:
                return BrokerAnswer(address)
            try:
                _, text = await self._get(f"{url}/debug/metrics", {}, {}, cluster)
                gauges = read_gauges(text.decode())
                status, text = await self._get(f"{url}/debug/journals", query, headers, cluster)
                if status in (401, 403):
                    return BrokerAnswer(address, gauges, is_refused=True)
                overview = BrokerOverview.model_validate(json.loads(text))
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
                return BrokerAnswer(address)
            return BrokerAnswer(address, gauges, overview)

        answers = await asyncio.gather(*map(ask, brokers.values()))
        return dict(zip(brokers, answers, strict=True))

    async def _get(
        self, url: str, query: Mapping[str, str], headers: Mapping[str, str], cluster: str
    ) -> tuple[int, bytes]:
        """Return status and body of an answer.

        Raises:
            OSError: another program answers, or the answer is too long.
            aiohttp.ClientError, TimeoutError: the broker does not answer.
        """
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
            self._session = aiohttp.ClientSession(timeout=timeout, trust_env=False)
        context = self._context() if url.startswith("https") else None
        async with self._session.get(
            url, params=query, headers=headers, ssl=context if context is not None else True
        ) as answer:
            body = bytearray()
            async for piece in answer.content.iter_chunked(1 << 16):
                body += piece
                if len(body) > ANSWER_BYTES_MAX:
                    raise OSError(f"the answer of {url} has more than {ANSWER_BYTES_MAX} bytes")
            found = answer.headers.get(CLUSTER_HEADER)
            if cluster and answer.status == 200 and found != cluster:
                raise OSError(f"another program answers at {url}")
            return answer.status, bytes(body)
