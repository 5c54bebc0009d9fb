"""Tokens of requests: the journals that they select, and the answers to requests without access."""

from aiohttp import web

from qsync_broker.auth import AuthError, Authorizer, Capability, Claims
from qsync_broker.http.requests import journal_of
from qsync_broker.keyspace import KeySpace
from qsync_broker.labels import LabelSet, with_name
from qsync_broker.problems import refused
from qsync_broker.spec import JournalSpec
from qsync_broker.status import Status, refusal
from qsync_node.format.journals import JournalRow


class HiddenJournalError(Exception):
    """The token does not select the journal, which does not exist for the client."""


InvalidRequest = (ValueError, AuthError, HiddenJournalError)
"""Errors of requests that `answer_to` answers."""


class JournalAccess:
    """Checks the tokens of requests."""

    def __init__(self, keys: KeySpace, authorizer: Authorizer) -> None:
        self._keys = keys
        self._authorizer = authorizer

    def claims(self, request: web.Request, capability: Capability) -> Claims:
        """Check the token of a request that names no journal.

        Returns:
            The claims of the token.

        Raises:
            AuthError: the token does not permit the request.
        """
        return self._authorizer.verify(request.headers.get("Authorization", ""), capability)

    def check(self, request: web.Request, capability: Capability) -> Claims:
        """Check the token of a request for the journal in its path.

        Returns:
            The claims of the token.

        Raises:
            AuthError: the token does not permit the request.
            HiddenJournalError: the token does not select the journal.
        """
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
    return refused(400, str(error))


def unauthorized(error: AuthError) -> web.Response:
    """Return the answer to a request whose token does not permit it."""
    return refused(401, str(error), {"WWW-Authenticate": "Bearer"})


def _labels(row: JournalRow) -> LabelSet:
    return with_name(JournalSpec.from_row(row.name, row.spec).labels, row.name)
