"""Members find each other from one known address; a member without enough others is an orphan."""

from pathlib import Path

from qsync_testing.processes import NodeProcess, ProcessCluster, wait_until


class Strangers(ProcessCluster):
    """A cluster whose members know only the first one's address at the start."""

    @property
    def peers(self) -> dict[str, str]:
        return {"n0": self.nodes[0].address}


def test_one_address_is_enough_to_find_all_members(tmp_path: Path) -> None:
    cluster = Strangers(tmp_path, 3)
    try:
        cluster.start()
        first = cluster.leader()
        others = [node for node in cluster.nodes if node is not first]

        def all_linked() -> bool:
            return all(node.status()["connected_voters"] == 3 for node in cluster.nodes)

        wait_until("all members to be connected to each other", all_linked)
        first.kill()
        # The other two learned each other's address, so they elect a leader.
        assert cluster.leader() in others
    finally:
        cluster.close()


def test_isolated_member_reports_it(tmp_path: Path) -> None:
    cluster = ProcessCluster(tmp_path, 3)
    try:
        cluster.start()
        leader = cluster.leader()
        left = next(node for node in cluster.nodes if node is not leader)
        for node in cluster.nodes:
            if node is not left:
                node.kill()

        def is_orphan() -> bool:
            status = left.status()
            return bool(status["is_orphan"]) and not status["hears_leader"]

        wait_until("the last member to notice", is_orphan)
        assert left.status()["ro_reason"] == (
            "the member knows no leader: 1 of the 2 needed voters are connected"
        )
        _start(cluster, leader)
        wait_until("a quorum again", lambda: not left.status()["is_orphan"])
    finally:
        cluster.close()


def _start(cluster: ProcessCluster, node: NodeProcess) -> None:
    node.start(cluster.peers)
