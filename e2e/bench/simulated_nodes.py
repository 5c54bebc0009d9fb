"""Members that only talk: pods that are never scheduled, and one process that answers for all.

The API server, the StatefulSets and the pods are real; this takes the kubelet's place and the
nodes'. Each pod of the namespace gets an address of 127.0.0.0/8 with two ports. One serves the
member's status by HTTPS. The other one speaks IPROTO over TLS, accepts every client, and reads and
writes a database of the cluster: the node's, without a log. `/bootstrap` founds a cluster, whose
first member leads permanently.

    python -m e2e.bench.simulated_nodes NAMESPACE ORDERS_FILE

One JSON line for each order to a member, with the wall clock.
"""

import asyncio
import base64
import contextlib
import ipaddress
import json
import ssl
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from aiohttp import web
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, CoreV1Api

from qsync_client.protocol.frame import FrameDecoder
from qsync_client.protocol.greeting import encode_greeting
from qsync_node.engine.database import Database
from qsync_node.engine.requests import Select, decode_request
from qsync_node.engine.statements import execute_write
from qsync_node.errors import ClientError
from qsync_node.format.frame import encode_error, encode_ok, encode_tuples
from qsync_node.format.keys import Type
from qsync_node.format.proofs import CHALLENGE_PATH, ORDER_SCHEME

FIRST = int(ipaddress.IPv4Address("127.77.0.10"))
ADMIN, TLS = 8081, 3302
MERGE = "application/merge-patch+json"


@dataclass
class SimulatedCluster:
    """State shared by the members of a cluster."""

    name: str
    context: ssl.SSLContext
    members: dict[str, str] = field(default_factory=dict)  # name -> uuid
    replicaset: str = ""
    is_formed: bool = False
    database: Database = field(default_factory=lambda: Database.bootstrap(str(uuid.uuid4())))

    def status(self, name: str) -> dict[str, Any]:
        leads = self.is_formed and name == min(self.members)
        leader = self.members[min(self.members)] if self.is_formed else ""
        return {
            "name": name,
            "uuid": self.members[name],
            "replicaset_uuid": self.replicaset,
            "role": "leader" if leads else "follower" if self.is_formed else "joining",
            "term": 1,
            "last_term": 1,
            "last_index": 10,
            "confirmed_index": 10,
            "replica_id": int(name.rpartition("-")[2]) + 1,
            "leader_uuid": leader,
            "is_writable": leads,
            "can_stand": True,
            "hears_leader": self.is_formed,
            "is_open": True,
            "split_brain": "",
            "refused": "",
            "quorum": 2,
            "order_schemes": [ORDER_SCHEME],
            "members": [self._registered(n, i) for n, i in self.members.items() if self.is_formed],
        }

    def _registered(self, name: str, instance: str) -> dict[str, Any]:
        return {
            "uuid": instance,
            "name": name,
            "replica_id": int(name.rpartition("-")[2]) + 1,
            "role": "voter",
            "is_voting": True,
            "is_live": True,
            "acknowledged_index": 10,
        }


def answer(database: Database, kind: int, sync: int, body: bytes) -> bytes:
    """Return a member's answer to a request, or None for a request that watches changes."""
    if kind == Type.WATCH:
        return b""
    if kind == Type.AUTH:
        return encode_ok(sync, 1)
    try:
        request = decode_request(kind, body)
        if isinstance(request, Select):
            admin = database.user_by_name("admin")
            assert admin is not None
            return encode_tuples(sync, 1, database.select(request, admin))
        outcome = execute_write(database, database.space(request.space_id), request)
        for change in outcome.changes:
            database.take(change)
        return encode_tuples(sync, 1, outcome.answer)
    except ClientError as error:
        return encode_error(sync, 1, int(error.code), str(error))


class Simulation:
    """The simulated members of one namespace."""

    def __init__(self, api: CoreV1Api, namespace: str, orders: TextIO) -> None:
        self.api = api
        self.namespace = namespace
        self.orders = orders
        self.clusters: dict[str, SimulatedCluster] = {}
        self.known: set[str] = set()

    async def run(self) -> None:
        while True:
            found = await self.api.list_namespaced_pod(self.namespace)
            for pod in found.items:
                about = pod.metadata
                assert about is not None
                assert about.uid is not None
                if about.uid not in self.known and about.deletion_timestamp is None:
                    # A Secret that is not there yet: the next turn tries again.
                    with contextlib.suppress(Exception):
                        await self._begin(pod)
                        self.known.add(about.uid)
            await asyncio.sleep(0.5)

    async def _begin(self, pod: Any) -> None:
        name, cluster = pod.metadata.name, pod.metadata.labels["qsync.dev/cluster"]
        if cluster not in self.clusters:
            self.clusters[cluster] = await self._cluster(cluster)
        one = self.clusters[cluster]
        one.members.setdefault(name, str(uuid.uuid4()))
        ip = str(ipaddress.IPv4Address(FIRST + len(self.known)))
        await self._serve(one, name, ip)
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        status = {
            "phase": "Running",
            "podIP": ip,
            "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": now}],
            "containerStatuses": [
                {
                    "name": "node",
                    "image": "simulated",
                    "imageID": "simulated",
                    "ready": True,
                    "restartCount": 0,
                    "state": {"running": {"startedAt": now}},
                }
            ],
        }
        await self.api.patch_namespaced_pod_status(
            name, self.namespace, {"status": status}, _content_type=MERGE
        )

    async def _cluster(self, name: str) -> SimulatedCluster:
        shown = await self._secret(f"{name}-tls")
        identity = await self._secret(f"{name}-identity")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.TemporaryDirectory() as folder:
            for key in ("tls.crt", "tls.key"):
                (Path(folder) / key).write_bytes(base64.b64decode(shown[key]))
            context.load_cert_chain(Path(folder) / "tls.crt", Path(folder) / "tls.key")
        replicaset = base64.b64decode(identity["replicasetUUID"]).decode()
        return SimulatedCluster(name, context, replicaset=replicaset)

    async def _secret(self, name: str) -> dict[str, bytes | str]:
        data = (await self.api.read_namespaced_secret(name, self.namespace)).data
        assert data is not None
        return data

    async def _serve(self, cluster: SimulatedCluster, name: str, ip: str) -> None:
        application = web.Application()

        async def status(_: web.Request) -> web.Response:
            return web.json_response(cluster.status(name))

        async def order(request: web.Request) -> web.Response:
            if request.path == "/bootstrap":
                cluster.is_formed = True
            line = {"cluster": cluster.name, "member": name, "path": request.path}
            self.orders.write(json.dumps({**line, "at": time.time()}) + "\n")
            self.orders.flush()
            return web.json_response({"result": True})

        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(encode_greeting(cluster.members[name], b"s" * 32))
            decoder = FrameDecoder()
            with contextlib.suppress(OSError):
                while data := await reader.read(1 << 16):
                    for kind, sync, _, body in decoder.feed(data):
                        writer.write(answer(cluster.database, kind, sync, body))
            writer.close()

        async def challenge(_: web.Request) -> web.Response:
            return web.json_response({"challenge": "any", "instance": cluster.members[name]})

        reading = [web.get("/status", status), web.get(CHALLENGE_PATH, challenge)]
        application.add_routes([*reading, web.post("/{any:.*}", order)])
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, ip, ADMIN, ssl_context=cluster.context).start()
        await asyncio.start_server(greet, ip, TLS, ssl=cluster.context)


async def main(namespace: str, orders: str) -> None:
    await config.load_kube_config()
    async with ApiClient() as client:
        with open(orders, "a") as file:
            await Simulation(CoreV1Api(client), namespace, file).run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
