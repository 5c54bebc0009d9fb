"""Codes and headers of answers."""

from email.utils import formatdate
from http import HTTPStatus

from aiohttp import web

from qsync_broker.fragments import content_name
from qsync_broker.http.requests import target_of
from qsync_broker.keyspace import KeySpace
from qsync_broker.replica import FragmentPart
from qsync_broker.resolver import Resolution
from qsync_broker.status import Status

CODES = {
    Status.OK: HTTPStatus.NO_CONTENT,
    Status.JOURNAL_NOT_FOUND: HTTPStatus.NOT_FOUND,
    Status.NO_JOURNAL_PRIMARY_BROKER: HTTPStatus.SERVICE_UNAVAILABLE,
    Status.NOT_JOURNAL_PRIMARY_BROKER: HTTPStatus.MISDIRECTED_REQUEST,
    Status.INSUFFICIENT_JOURNAL_BROKERS: HTTPStatus.SERVICE_UNAVAILABLE,
    Status.NOT_JOURNAL_BROKER: HTTPStatus.MISDIRECTED_REQUEST,
    Status.OFFSET_NOT_YET_AVAILABLE: HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
    Status.NOT_ALLOWED: HTTPStatus.FORBIDDEN,
    Status.WRONG_APPEND_OFFSET: HTTPStatus.PRECONDITION_FAILED,
    Status.INDEX_HAS_GREATER_OFFSET: HTTPStatus.CONFLICT,
    Status.REGISTER_MISMATCH: HTTPStatus.PRECONDITION_FAILED,
    Status.SUSPENDED: HTTPStatus.CONFLICT,
    Status.FRAGMENT_STORE_UNHEALTHY: HTTPStatus.SERVICE_UNAVAILABLE,
}


def route_headers(request: web.Request, found: Resolution, keys: KeySpace) -> dict[str, str]:
    """Return the headers that name the brokers of a journal, and the URL at its primary."""
    route, brokers = found.route, keys.brokers
    members = [f'members:<zone:"{one.zone}" suffix:"{one.suffix}" > ' for one in route.members]
    endpoints = [brokers[one].endpoint if one in brokers else "" for one in route.members]
    token = "".join(members)
    token += f"primary:{route.primary} " if route.primary else ""
    token += "".join(f'endpoints:"{endpoint}" ' for endpoint in endpoints)
    headers = {"X-Route-Token": token}
    if route.primary >= 0:
        headers["Location"] = endpoints[route.primary].rstrip("/") + target_of(request)
    return headers


def fragment_headers(part: FragmentPart) -> dict[str, str]:
    """Return the headers that describe the fragment with the first byte of a read."""
    headers = {"X-Fragment-Name": content_name(part.begin, part.end, part.sum, part.codec)}
    if part.remote is not None:
        headers["X-Fragment-Last-Modified"] = formatdate(part.remote.mod_time, usegmt=True)
    return headers
