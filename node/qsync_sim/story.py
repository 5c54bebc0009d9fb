"""Stories: interaction scripts with recorded output (`node/stories/*.txt`).

A story drives a simulated cluster by hand. Lines that begin with `> ` are commands, lines with `#`
are comments, and everything else is the recorded output of the command above it. A story passes if
it produces the same output. `python -m qsync_sim.story --rewrite` records all stories.

Commands (a member is n1, n2, ...; times are milliseconds):

  cluster N [name=value ...]     N voters, n1 leads; settings by name
  write M KEY VALUE [words]      REPLACE at member M; words: insert, update, delete, async, long,
                                 key=NUMBER (idempotency), stream=NUMBER
  begin M S [linearizable], commit M S
                                 a transaction in stream S of member M
  read M KEY [linearizable|dirty|stream=S]
  run T, until EVENT, settle     let time pass; until a member reports it; until all logs agree
                                 and no client waits for an answer
  slow M T, fast M               the disk of M takes T
  cut A B, heal, break           messages from A to B are held back; cuts end; cut connections break
  alone M                        cut M off from all others, both ways
  kill M, power M, start M       kill -9; power loss; a start on the same disk
  power M untorn                 power loss before any write under way has begun
  refuse M, accept M             M cannot apply user rows; it can again
  failfsync M, full M, low M, space M
                                 the next flush fails; no space; little space; space again
  nominate M, switchover M T, fence M, unfence M, snapshot M
  add ROLE, unregister M         a new instance; the leader removes a member
  set M name=value               a setting of the running member
  show                           every member: role, term, last index, on disk, confirmed, limbo
  state KEY [async]              what each member answers to a default read
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack

import qsync_sim
from qsync_client.protocol.constants import Isolation
from qsync_node.consensus import effects as fx
from qsync_node.consensus.settings import MILLISECOND, SECOND
from qsync_node.engine.requests import Select, decode_request
from qsync_node.errors import ClientError, ErrorCode
from qsync_node.format.keys import DELETE, INSERT, KEY_TXN_ISOLATION, REPLACE, SELECT, UPDATE
from qsync_node.transactions.users import check_state_is_served
from qsync_sim.clients import BEGIN, COMMIT, ROLLED_BACK, UNKNOWN, build_body
from qsync_sim.model import ASYNC_SPACE, SPACE
from qsync_sim.world import World

if TYPE_CHECKING:
    from qsync_node.node import Node
    from qsync_sim.shell import Shell

DIRECTORY = Path(qsync_sim.__file__).resolve().parent.parent / "stories"
SESSION = 100
SHOWN_EVENTS = frozenset(
    {
        "leader",
        "step_down",
        "rollback",
        "rolled_back",
        "rewind",
        "nack",
        "state_diverged",
        "state_repaired",
        "disk_full",
        "snapshot_taken",
        "split_brain",
        "register",
        "unregister",
        "promoted_to_voting",
        "switchover",
        "fence",
        "checkpoint",
        "acknowledged_rows_lost",
        "nomination_refused",
        "replica_evicted",
        "snapshot_installed",
    }
)
ISOLATIONS = {"linearizable": int(Isolation.LINEARIZABLE), "dirty": int(Isolation.READ_COMMITTED)}


class Story:
    """One script and the world that it drives."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.world = World(1)
        self.world.disks.spread = 0.0  # a story states how slow its disks are
        self.output: list[str] = []
        self.labels: dict[int, str] = {}
        self.unanswered: set[str] = set()
        self.asked: dict[str, str] = {}
        self.names: dict[str, Shell] = {}
        self.world.on_event = self._on_report
        self.world.on_story_answer = self._on_answer
        self._commands: dict[str, Callable[..., None]] = {
            name.removeprefix("do_"): getattr(self, name)
            for name in dir(self)
            if name.startswith("do_")
        }

    def play(self) -> str:
        """Run the script and return it with its output."""
        result: list[str] = []
        for line in self.text.splitlines():
            if line.startswith("> "):
                result.append(line)
                self.output = []
                name, *arguments = line[2:].split()
                self._commands[name](*arguments)
                result += [f"  {said}".rstrip() for said in self.output]
            elif line.startswith("#") or not line:
                result.append(line)
        return "\n".join(result) + "\n"

    # --- output ------------------------------------------------------------------------------

    def say(self, line: str) -> None:
        self.output.append(line)

    def _named(self, value: object) -> Any:
        shell = self.world.shells.get(value) if isinstance(value, str) else None
        return shell.name if shell is not None else value

    def _on_report(self, shell: "Shell", report: fx.Report) -> None:
        if report.event in SHOWN_EVENTS:
            fields = " ".join(f"{k}={self._named(v)}" for k, v in report.fields.items())
            self.say(f"{shell.name}: {report.event} {fields}")

    def _on_answer(self, answer: fx.Answer) -> None:
        label = self.labels.get(answer.sync)
        if label is None:
            return
        self.unanswered.discard(label)
        tuples = [msgpack.unpackb(packed) for packed in answer.tuples]
        if answer.code == 0:
            where = f" at {answer.log_index}" if answer.log_index else ""
            self.say(f"{label}: committed{where} {tuples}"[:100])
            return
        outcome = "refused"
        if answer.code in ROLLED_BACK:
            outcome = "rolled back"
        elif answer.code in UNKNOWN:
            outcome = "unknown"
        self.say(f"{label}: {outcome} ({ErrorCode(answer.code).name})")

    # --- the cluster --------------------------------------------------------------------------

    def do_cluster(self, voters: str, *settings: str) -> None:
        self.world.bootstrap(int(voters), **_settings(settings))
        for shell in self.world.shells.values():
            self.names[shell.name] = shell
        self.do_settle()
        self.output = []
        self.do_show()

    def do_add(self, role: str) -> None:
        shell = self.world.add(role)
        self.names[shell.name] = shell
        shell.start()

    def do_kill(self, name: str) -> None:
        self._stop(name, power_loss=False)

    def do_power(self, name: str, how: str = "") -> None:
        if how:
            tasks = self.names[name].tasks
            assert tasks is not None
            tasks.under_way.clear()
        self._stop(name, power_loss=True)

    def _stop(self, name: str, power_loss: bool) -> None:
        self.names[name].stop(power_loss)
        for label in sorted(self.unanswered):
            if self.asked[label] == name:
                self.unanswered.remove(label)
                self.say(f"{label}: unknown (its member died)")

    def do_start(self, name: str) -> None:
        self.names[name].start()

    def do_slow(self, name: str, delay: str) -> None:
        self.names[name].disk_delay_ns = int(delay) * MILLISECOND

    def do_fast(self, name: str) -> None:
        self.names[name].disk_delay_ns = 200_000

    def do_cut(self, sender: str, receiver: str) -> None:
        self.world.network.cut(self.names[sender], self.names[receiver])

    def do_alone(self, name: str) -> None:
        for other in self.names:
            if other != name:
                self.do_cut(name, other)
                self.do_cut(other, name)

    def do_heal(self) -> None:
        self.world.network.heal()

    def do_break(self) -> None:
        self.world.network.break_cut_off()

    def do_refuse(self, name: str) -> None:
        self._node(name).refuse_rows = True

    def do_accept(self, name: str) -> None:
        self._node(name).refuse_rows = False

    def do_failfsync(self, name: str) -> None:
        self.names[name].fail_next_write = "flush"

    def do_full(self, name: str) -> None:
        shell = self.names[name]
        shell.disk.capacity_bytes = shell.disk.used_bytes + 1000

    def do_low(self, name: str) -> None:
        self.names[name].step([fx.SpaceLow(True)])

    def do_space(self, name: str) -> None:
        shell = self.names[name]
        shell.disk.capacity_bytes = 1 << 62
        shell.step([fx.SpaceLow(False)])

    def _node(self, name: str) -> Any:
        node = self.names[name].node
        assert node is not None, f"{name} is down"
        return node

    # --- verbs --------------------------------------------------------------------------------

    def do_nominate(self, name: str) -> None:
        term = self._node(name).context.term
        self.world.command(self.names[name], "nominate", term=term)

    def do_switchover(self, name: str, target: str) -> None:
        self.world.command(self.names[name], "switchover", target=target)

    def do_fence(self, name: str) -> None:
        self.world.command(self.names[name], "fence")

    def do_unfence(self, name: str) -> None:
        self.world.command(self.names[name], "unfence")

    def do_snapshot(self, name: str) -> None:
        self.world.command(self.names[name], "snapshot")

    def do_unregister(self, name: str) -> None:
        leader = self.world.leader()
        assert leader is not None
        self.world.command(leader, "unregister", uuid=self.names[name].uuid)

    def do_set(self, name: str, *settings: str) -> None:
        self.world.command(self.names[name], "configure", **_settings(settings))

    # --- clients ------------------------------------------------------------------------------

    def _ask(
        self, letter: str, name: str, type_: int, body: bytes, stream: int, key: object
    ) -> None:
        sync = len(self.labels) + 1
        label = f"{letter}{sync}"
        self.labels[sync] = label
        self.unanswered.add(label)
        self.asked[label] = name
        shell = self.names[name]
        if shell.node is None:
            self.say(f"{label}: {name} is down")
            return
        shell.step([fx.Request(SESSION, sync, type_, body, stream, "admin", key)])

    def do_write(self, name: str, key: str, value: str, *words: str) -> None:
        options = dict(word.partition("=")[::2] for word in words)
        space = ASYNC_SPACE if "async" in options else SPACE
        stream = int(options.get("stream", 0))
        idempotency = None
        if "key" in options:
            idempotency = ["story", int(options["key"]), 1]
        if "long" in options:
            value *= 500
        number = int(key)
        made = [number, value, 0]
        if "update" in options:
            ops = [["=", 1, value], ["+", 2, 1]]
            type_, body = UPDATE, build_body(space, index=0, key=[number], tuple=ops)
        elif "delete" in options:
            type_, body = DELETE, build_body(space, index=0, key=[number])
        else:
            type_ = INSERT if "insert" in options else REPLACE
            body = build_body(space, tuple=made)
        self._ask("w", name, type_, body, stream, idempotency)

    def do_begin(self, name: str, stream: str, how: str = "") -> None:
        body = msgpack.packb({KEY_TXN_ISOLATION: ISOLATIONS[how]}) if how else b""
        self._ask("b", name, BEGIN, body, int(stream), None)

    def do_commit(self, name: str, stream: str) -> None:
        self._ask("c", name, COMMIT, b"", int(stream), None)

    def do_read(self, name: str, key: str, how: str = "") -> None:
        more: dict[str, Any] = {"index": 0, "limit": 10, "key": [int(key)]}
        stream = 0
        if how.startswith("stream="):
            stream = int(how.removeprefix("stream="))
        elif how:
            more["isolation"] = ISOLATIONS[how]
        self._ask("r", name, SELECT, build_body(SPACE, **more), stream, None)

    # --- time and looks -----------------------------------------------------------------------

    def do_run(self, milliseconds: str) -> None:
        self.world.run_for(int(milliseconds) * MILLISECOND)

    def do_until(self, event: str) -> None:
        """Run until a member reports `event`."""
        seen = self.world.counters[f"event {event}"]
        if not self.world.run_for(20 * SECOND, lambda: self._count(event) > seen):
            self.say(f"no {event} within 20 s")

    def _count(self, event: str) -> int:
        return self.world.counters[f"event {event}"]

    def do_settle(self) -> None:
        if not self.world.run_for(20 * SECOND, self._is_settled):
            self.say("nothing settled within 20 s")

    def _is_settled(self) -> bool:
        if self.unanswered:
            return False
        leader = self.world.leader()
        if leader is None or leader.node is None:
            return False
        goal = leader.node.context.tail.last_index
        return all(
            shell.node is not None
            and shell.node.context.limbo.confirmed_index == goal
            and shell.node.context.tail.durable_index == goal
            for shell in self.world.alive()
        )

    def do_show(self) -> None:
        for name, shell in self.names.items():
            node = shell.node
            if node is None:
                self.say(f"{name} down")
                continue
            context = node.context
            tail, limbo = context.tail, context.limbo
            self.say(
                f"{name} {node.status.role():9} term {context.term} last {tail.last_index} "
                f"on disk {tail.durable_index} confirmed {limbo.confirmed_index} limbo {len(limbo)}"
            )

    def do_state(self, key: str, space: str = "") -> None:
        body = build_body(ASYNC_SPACE if space else SPACE, index=0, limit=10, key=[int(key)])
        for name, shell in self.names.items():
            if shell.node is not None:
                self.say(f"{name}: {self._read_state(shell.node, body)}")

    @staticmethod
    def _read_state(node: "Node", body: bytes) -> str:
        try:
            check_state_is_served(node.replica)
        except ClientError as error:
            return f"refused ({ErrorCode(error.code).name})"
        request = decode_request(SELECT, body)
        assert isinstance(request, Select)
        user = node.database.user_by_name("admin")
        assert user is not None
        tuples = [msgpack.unpackb(packed) for packed in node.database.select(request, user)]
        return str(tuples)[:60]


def _settings(words: tuple[str, ...]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for word in words:
        name, _, value = word.partition("=")
        settings[name] = int(value) if value.isdigit() else value
    return settings


def play(path: Path) -> str:
    return Story(path.read_text()).play()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m qsync_sim.story", description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--rewrite", action="store_true", help="record the output again")
    arguments = parser.parse_args()
    different = 0
    for path in sorted(DIRECTORY.glob("*.txt")):
        if arguments.names and path.stem not in arguments.names:
            continue
        told = play(path)
        if told != path.read_text():
            different += 1
            if arguments.rewrite:
                path.write_text(told)
            sys.stdout.write(f"{path.name} differs now\n")
    return 1 if different and not arguments.rewrite else 0


if __name__ == "__main__":
    sys.exit(main())
