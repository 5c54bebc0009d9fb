"""A client of the API server that refuses every request while the Lease cannot be renewed.

Another operator may hold the Lease meanwhile, so nothing is written. Reads are refused as well: an
API server that hangs would delay the turns of the controller, and with them a failover.
"""

from collections.abc import Callable
from typing import Any

from qsync_operator.kubernetes.api import Api, ApiError
from qsync_operator.resources.labels import KubernetesObject


class LeasedApi:
    """An API that forwards calls while `is_held`; otherwise each call raises ApiError at once."""

    def __init__(self, api: Api, is_held: Callable[[], bool]) -> None:
        self._api = api
        self._is_held = is_held

    def _checked(self) -> Api:
        if not self._is_held():
            raise ApiError("the request was not sent: the operator cannot renew its Lease")
        return self._api

    async def get(self, kind: str, namespace: str, name: str) -> KubernetesObject | None:
        return await self._checked().get(kind, namespace, name)

    async def find(
        self, kind: str, namespace: str, labels: str = "", fields: str = ""
    ) -> list[KubernetesObject]:
        return await self._checked().find(kind, namespace, labels, fields)

    async def has_kind(self, kind: str) -> bool:
        return await self._checked().has_kind(kind)

    async def create(self, document: KubernetesObject) -> KubernetesObject:
        return await self._checked().create(document)

    async def apply(self, document: KubernetesObject, subresource: str = "") -> KubernetesObject:
        return await self._checked().apply(document, subresource)

    async def patch(
        self, kind: str, namespace: str, name: str, change: dict[str, Any]
    ) -> KubernetesObject:
        return await self._checked().patch(kind, namespace, name, change)

    async def delete(
        self, kind: str, namespace: str, name: str, uid: str = "", keeps_pods: bool = False
    ) -> None:
        await self._checked().delete(kind, namespace, name, uid, keeps_pods)
