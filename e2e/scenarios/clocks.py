"""Wrong clocks: no safety rule reads a clock."""

import base64
import json
import time
from datetime import datetime
from functools import partial

from e2e.kube import IMAGES, KIND_NAME, run
from e2e.scenario import Scene, Wrong, scenario
from e2e.timeouts import CHANGE_PAUSE_MS, FAILOVER_S, IMAGE_BUILD_S, LATE_S, READY_S, SETTLE_S

IMAGE = "qsync-node:e2e-clock"
AHEAD, HURRIED = "orders-1", "orders-2"
AHEAD_S = 3600
START = f"""#!/bin/sh
case $POD_NAME in
  {AHEAD}) export FAKETIME=+{AHEAD_S}s FAKETIME_DONT_FAKE_MONOTONIC=1 LD_PRELOAD=/faketime.so;;
  {HURRIED}) export 'FAKETIME=+0 x2' LD_PRELOAD=/faketime.so;;
esac
exec python -m qsync_agent
"""
DOCKERFILE = f"""FROM {IMAGES["node"]}
USER 0
RUN apt-get update && apt-get install -y --no-install-recommends libfaketime \\
 && ln -s $(find / -name libfaketimeMT.so.1 | head -1) /faketime.so
RUN echo {base64.b64encode(START.encode()).decode()} | base64 -d > /start.sh
USER 10001:10001
ENTRYPOINT ["sh", "/start.sh"]
"""


def _build() -> None:
    run("docker", "build", "-t", IMAGE, "-", stdin=DOCKERFILE, timeout_s=IMAGE_BUILD_S)
    run("kind", "load", "docker-image", "--name", KIND_NAME, IMAGE, timeout_s=IMAGE_BUILD_S)


def _ahead_s(scene: Scene, pod: str) -> float:
    """Return how far a member's clock is ahead of its machine, by its last log line."""
    line = scene.kubectl("logs", pod, "-c", "node", "--timestamps", "--tail=1").strip()
    written, _, text = line.partition(" ")
    said = datetime.fromisoformat(json.loads(text)["time"])
    return (said - datetime.fromisoformat(written)).total_seconds()


@scenario(needs=("machines",), not_local="machines")
def wrong_clocks(scene: Scene) -> str:
    """One clock is an hour ahead, another is twice as fast. Each member leads, and is deleted."""
    _build()
    scene.start_with_load(image=IMAGE)
    ahead_s = _ahead_s(scene, AHEAD)
    if not AHEAD_S / 2 < ahead_s < AHEAD_S * 2:
        raise Wrong(f"the clock of {AHEAD} is {ahead_s:.0f} s ahead instead of {AHEAD_S} s")
    pauses = []
    for name in (AHEAD, HURRIED):
        scene.lead(name)
        time.sleep(SETTLE_S)  # a leader whose lease is measured wrongly loses it in this time
        status = scene.status()
        assert status["leader"] == name, f"{name} leads, but the status reports {status['leader']}"
        assert scene.is_ready(3), status["conditions"]
        uid, at_s = scene.pods()[name], time.time()
        scene.kubectl("delete", "pod", name, "--grace-period=0", "--force")
        scene.wait("another leader", partial(scene.has_other_leader, name), FAILOVER_S)
        scene.wait("a new pod", partial(scene.is_new_and_ready, name, uid), READY_S)
        scene.wait("three nodes", lambda: scene.is_ready(3), READY_S)
        time.sleep(LATE_S)  # late requests count as an outage as well
        found = scene.pauses(at_s - LATE_S)
        assert found.longest_ms < CHANGE_PAUSE_MS, f"writes paused for {found}"
        at = datetime.fromisoformat(scene.status()["lastFailover"]["at"]).timestamp()
        assert abs(at - at_s) < READY_S, (
            "the status contains the time of a member instead of the operator's"
        )
        pauses.append(f"{name} deleted: {found}")
    return f"{AHEAD} is {ahead_s:.0f} s ahead; {'; '.join(pauses)}; {scene.nothing_is_lost()}"
