"""Commands of an administrator: fence, pause, hibernate, supervised restarts, and rows."""

import json

from e2e.scenario import SPACE, Scene, scenario
from e2e.timeouts import CONVERGE_S, FAILOVER_S, READY_S, ROLL_S


@scenario(modest=True)
def hibernate(scene: Scene) -> str:
    """`hibernate` stops the pods, and resumes the same instances."""
    scene.start()
    before = {m["name"]: m["uuid"] for m in scene.status()["members"]}
    scene.patch(hibernate=True)
    slept_s = scene.wait("no process", lambda: not scene.processes(), ROLL_S)
    assert scene.status()["phase"] == "Hibernated"
    scene.patch(hibernate=False)
    woke_s = scene.wait("three nodes", lambda: scene.is_ready(3), READY_S)
    assert before == {m["name"]: m["uuid"] for m in scene.status()["members"]}
    return f"hibernated after {slept_s:.0f} s, resumed after {woke_s:.0f} s with the same instances"


@scenario(quick=True, modest=True, not_local="verbs")
def fence(scene: Scene) -> str:
    """The leader is fenced by annotation, and unfenced."""
    scene.start()
    leader = scene.status()["leader"]
    scene.kubectl("annotate", "qc", "orders", f"qsync.dev/fenced={leader}")

    def is_fenced() -> bool:
        found = [m["name"] for m in scene.status()["members"] if m.get("fenced")]
        return found == [leader] and scene.status()["leader"] not in ("", leader)

    took_s = scene.wait("the fence", is_fenced, FAILOVER_S)
    scene.kubectl("annotate", "qc", "orders", "qsync.dev/fenced-")
    scene.wait(
        "its end",
        lambda: not any(m.get("fenced") for m in scene.status()["members"]),
        FAILOVER_S,
    )
    return f"another member led {took_s:.1f} s after the annotation"


@scenario(modest=True, not_local="verbs")
def pause(scene: Scene) -> str:
    """Under `kubectl qsync pause` a scale waits and a failover does not."""
    scene.start()
    scene.qsync("pause")
    scene.wait("the pause", scene.has_reason("Progressing", "Paused"), CONVERGE_S)
    scene.kubectl("scale", "qc", "orders", "--replicas=5")
    old = scene.status()["leader"]
    scene.kubectl("delete", "pod", old, "--wait=false")
    scene.wait("a failover", lambda: scene.status().get("leader") not in ("", old), FAILOVER_S)
    assert len(scene.pods()) <= 3
    scene.qsync("resume")
    scene.wait("five nodes", lambda: scene.is_ready(5), ROLL_S)
    return "the scale waited, the failover did not"


@scenario(modest=True, not_local="verbs")
def supervised(scene: Scene) -> str:
    """A rollout waits for `kubectl qsync switchover` before the leader."""
    scene.start(rollout={"strategy": "Supervised"})
    before, leader = scene.pods(), scene.status()["leader"]
    scene.qsync("restart")
    scene.wait("the leader's turn", scene.has_reason("Progressing", "AwaitingSwitchover"), ROLL_S)
    now = scene.pods()
    assert [name for name in before if before[name] == now[name]] == [leader]
    scene.qsync("switchover")
    scene.wait(
        "the last one", lambda: scene.pods().get(leader) not in (None, before[leader]), ROLL_S
    )
    scene.wait("three nodes", lambda: scene.is_ready(3), ROLL_S)
    return f"{leader} restarted only after `kubectl qsync switchover`"


@scenario(quick=True, modest=True, not_local="verbs")
def rows(scene: Scene) -> str:
    """`kubectl qsync put`, `tail`, `import` and `export` reach the pods; one pod is deleted."""
    scene.start(spaces=[SPACE])
    assert "committed at" in scene.qsync("put", scene.cluster, "orders", '[1, "put"]')
    file = scene.folder / "rows.jsonl"
    file.write_text("".join(f"{json.dumps([number, 'x' * 1000])}\n" for number in range(2, 2002)))
    scene.qsync("import", scene.cluster, "orders", str(file))
    scene.kubectl("delete", "pod", scene.leader(), "--wait=false")
    assert "committed at" in scene.qsync("put", scene.cluster, "orders", '[2002, "later"]')
    exported = scene.folder / "exported.jsonl"
    scene.qsync("export", scene.cluster, "orders", "--consistent", "-o", str(exported))
    assert len(exported.read_text().splitlines()) == 2002
    changes = scene.qsync("tail", scene.cluster, "orders").splitlines()
    assert len({json.loads(line)["index"] for line in changes}) == len(changes) == 2002
    shown = scene.qsync("sh", scene.cluster, "-c", "begin", "-c", "delete orders 1", "-c", "commit")
    assert "committed at" in shown
    return "2,002 rows written, followed and exported through the API server"
