"""`kubectl qsync replace`: a member whose local volume is lost begins again on a new one."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from qsync_cli import targets
from qsync_cli.failure import Failure, FailureReason
from qsync_cli.kubernetes import session as kubernetes_session
from qsync_cli.options import OutputOption
from qsync_cli.output import done
from qsync_cli.where import Where, aimed_at_member, require_kubernetes

if TYPE_CHECKING:
    from qsync_cli.kubernetes.session import KubernetesSession

ForceOption = Annotated[
    bool,
    typer.Option("--force", help="Replace the member although its machine exists or it answers."),
]
SELECTED_NODE = "volume.kubernetes.io/selected-node"


@aimed_at_member
def replace(
    where: Where, member: str, force: ForceOption = False, output: OutputOption = None
) -> None:
    """Replace a member: delete its volume and pod, so that it joins again."""
    require_kubernetes(
        where, "replace", f"`qsync restart {where.local}` lets a member without data join again"
    )

    target = targets.resolve(where, member)
    found = targets.ask(target, lambda links: targets.statuses(links, target))
    leader = targets.leader_of(found)
    refusal = replacement_error(member, leader, found[leader] if leader else {}, is_forced=force)
    if refusal is not None:
        raise Failure(FailureReason.REFUSED, f"cannot replace {member}: {refusal}")
    kubernetes_session.converse(
        where, lambda session: replace_volume(session, member, is_forced=force)
    )
    done(
        f"{member} joins again on a new volume; `kubectl qsync status` shows when it follows",
        output,
        member=member,
        replaced=True,
    )


def replacement_error(
    member: str, leader: str | None, status: dict[str, Any], *, is_forced: bool
) -> str | None:
    """Return why a replacement would endanger the quorum, by the leader's status, or None.

    No flag overrides the quorum: without it the last copies of confirmed rows could be deleted.
    """
    if leader is None:
        return "no member leads, so the loss cannot be determined; restore a majority first"
    if member == leader:
        return "it is the leader; run `kubectl qsync switchover` first"
    registered = [one for one in status["members"] if one["name"] == member]
    if any(one.get("is_live") for one in registered) and not is_forced:
        return "it answers the leader; add --force to delete its data anyway"
    if not any(one["is_voting"] for one in registered):
        return None
    voters = [one for one in status["members"] if one["is_voting"]]
    live = [one for one in voters if one["name"] != member and one.get("is_live")]
    quorum = max(int(status.get("quorum") or 0), len(voters) // 2 + 1)
    if len(live) < quorum:
        others = "1 other voter is" if len(live) == 1 else f"{len(live)} other voters are"
        return f"{others} available, and {quorum} are needed; restore them first"
    return None


async def replace_volume(session: "KubernetesSession", member: str, *, is_forced: bool) -> None:
    """Delete claim and pod by uid, so that a recreated object is not deleted.

    Raises:
        Failure: the member must not be replaced.
        ApiError: the API server refused a request.
    """
    claim_name = f"data-{member}"
    claim = await session.api.get("PersistentVolumeClaim", session.namespace, claim_name)
    if claim is not None:
        node = (claim["metadata"].get("annotations") or {}).get(SELECTED_NODE, "")
        if not is_forced and (not node or await session.api.get("Node", "", node) is not None):
            why = f"its machine {node} still exists" if node else "no machine is recorded for it"
            raise Failure(
                FailureReason.REFUSED,
                f"cannot delete volume claim {claim_name}: {why}; add --force if the "
                "volume is lost",
            )
        uid = str(claim["metadata"]["uid"])
        await session.api.delete("PersistentVolumeClaim", session.namespace, claim_name, uid)
    pod = await session.api.get("Pod", session.namespace, member)
    if pod is not None:
        uid = str(pod["metadata"]["uid"])
        await session.api.delete("Pod", session.namespace, member, uid)
