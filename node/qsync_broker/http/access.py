"""Tokens of requests: the journals that they select, and the answers to requests without access."""

import asyncio

from aiohttp import web

from qsync_broker.auth import AuthError, Authorizer, Capability, Claims
from qsync_broker.http.requests import journal_of, revision_of
from qsync_broker.labels import LabelSet, with_name
from qsync_broker.problems import refused
from qsync_broker.resolver import FIRST_REVISION, REVISION_S
from qsync_broker.server import BrokerServer
from qsync_broker.spec import JournalSpec
from qsync_broker.status import Status, refusal
from qsync_node.format.journals import JournalRow


class HiddenJournalError(Exception):
    """The token does not select the journal, which does not exist for the client."""


class LateRevisionError(Exception):
    """The broker does not reach the revision of a request; the text is the answer."""


InvalidRequest = (ValueError, AuthError, HiddenJournalError, LateRevisionError)
"""Errors of requests that `answer_to` answers."""


class JournalAccess:
    """Checks the tokens of requests."""

    def __init__(self, server: BrokerServer, authorizer: Authorizer) -> None:
        self._server = server
        self._keys = server.core.keys
        self._authorizer = authorizer

    def claims(self, request: web.Request, capability: Capability) -> Claims:
        """Check the token of a request that names no journal.

        Returns:
            The claims of the token.

        Raises:
            AuthError: the token does not permit the request.
        """
        return self._authorizer.verify(request.headers.get("Authorization", ""), capability)

    async def check(self, request: web.Request, capability: Capability) -> Claims:
        """Check the token of a request for the journal in its path, at the request's revision.

        Returns:
            The claims of the token.

        Raises:
            ValueError: the revision is invalid.
            AuthError: the token does not permit the request.
            LateRevisionError: this broker does not reach the revision in time.
            HiddenJournalError: the token does not select the journal.
        """
        self.claims(request, capability)
        # A broker that has no rows yet waits for them: without its row, a journal looks absent.
        revision = max(revision_of(request), FIRST_REVISION)
        try:
            async with asyncio.timeout(REVISION_S):
                await self._server.revision(revision)
        except TimeoutError:
            raise LateRevisionError(
                f"this broker does not know revision {revision}: repeat the request"
            ) from None
        # After the wait: an earlier row may have other labels, and the token may have expired.
        claims = self.claims(request, capability)
        row = self._keys.journals.get(journal_of(request))
        if row is not None and not is_permitted(claims, row):
            raise HiddenJournalError
        return claims


def is_permitted(claims: Claims, row: JournalRow) -> bool:
    """Return whether a token selects a journal."""
    return claims.permits(_labels(row))


def answer_to(request: web.Request, error: Exception) -> web.Response:
    """Return the answer to a request that is invalid or not permitted (`InvalidRequest`)."""
    if isinstance(error, AuthError):
        return unauthorized(error)
    if isinstance(error, HiddenJournalError):
        return refused(404, refusal(journal_of(request), Status.JOURNAL_NOT_FOUND))
    return refused(503 if isinstance(error, LateRevisionError) else 400, str(error))


def unauthorized(error: AuthError) -> web.Response:
    """Return the answer to a request whose token does not permit it."""
    return refused(401, str(error), {"WWW-Authenticate": "Bearer"})


def _labels(row: JournalRow) -> LabelSet:
    return with_name(JournalSpec.from_row(row.name, row.spec).labels, row.name)
