"""Members come and go while clients write."""

import time
from functools import partial

from e2e.scenario import Scene, scenario
from e2e.timeouts import CHANGE_PAUSE_MS, LATE_S, ROLL_S


@scenario(quick=True, load=True)
def scale(scene: Scene) -> str:
    """3 -> 5 -> 3 by `kubectl scale`. The leader is among the removed members."""
    said = []
    for replicas in (5, 3):
        if replicas == 3:
            scene.lead("orders-4")
        at_s = time.time()
        scene.scale(replicas)
        took_s = scene.wait("members", partial(scene.is_ready, replicas), ROLL_S)
        time.sleep(LATE_S)  # late requests count as an outage as well
        found = scene.measure("3 -> 5 and 5 -> 3 members", at_s - LATE_S, CHANGE_PAUSE_MS)
        said.append(f"{replicas} members after {took_s:.0f} s, writes paused for {found}")
    scene.wait("three processes", lambda: len(scene.processes()) == 3, ROLL_S)
    return "; ".join(said)


@scenario(modest=True)
def readers(scene: Scene) -> str:
    """Async members and readers are added and removed, and never count for the quorum."""
    scene.start(asyncReplicas=1, readReplicas=1)
    wanted = {"orders-0", "orders-1", "orders-2", "orders-async-0", "orders-reader-0"}

    def roles() -> dict[str, str]:
        return {m["name"]: m["role"] for m in scene.status()["members"]}

    scene.wait("five members", lambda: set(roles()) == wanted, ROLL_S)
    scene.wait(
        "their roles",
        lambda: (roles()["orders-async-0"], roles()["orders-reader-0"]) == ("async", "anonymous"),
        ROLL_S,
    )
    assert scene.status()["quorum"] == 2, "an async member or a reader counts for the quorum"
    scene.patch(asyncReplicas=0, readReplicas=0)
    scene.wait("three members", lambda: len(roles()) == 3 and len(scene.processes()) == 3, ROLL_S)
    return "an async member and a reader were added and removed, and never counted for the quorum"
