"""A cluster for the tests of the client, which each file starts once, and a raw connection."""

import asyncio
from collections.abc import Callable, Iterator

import pytest

from qsync_testing.client_cluster import ClientBody, cluster_with_accounts, run_with_client
from qsync_testing.processes import ProcessCluster
from qsync_testing.raw import Raw


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    with cluster_with_accounts(tmp_path_factory.mktemp("client")) as running:
        yield running


@pytest.fixture
def with_client(cluster: ProcessCluster) -> Callable[[ClientBody], None]:
    """Return a function that runs a coroutine with a connected client and empty spaces."""
    return lambda body: asyncio.run(run_with_client(cluster, body))


@pytest.fixture
def raw(cluster: ProcessCluster) -> Iterator[Raw]:
    """Return a connection to the leader, without log-in."""
    connection = Raw(cluster.leader().address)
    yield connection
    connection.socket.close()
