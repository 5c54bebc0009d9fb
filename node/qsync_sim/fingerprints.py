"""Fingerprints of schedules: a digest of every effect of every step, for changes of structure only.

    python -m qsync_sim.fingerprints --seeds 0..299 --write FILE
    python -m qsync_sim.fingerprints --compare FILE

A change that is meant to move code and nothing else keeps every fingerprint. Effects are those of
the core: log writes, ballots, messages, answers and reports, with all their fields.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from qsync_node.consensus import effects as fx
from qsync_node.node import Node
from qsync_sim.__main__ import run_seed

SNAPSHOTS = (fx.WriteSnapshot, fx.InstallSnapshot)


def fingerprint(seed: int) -> str:
    """Run a schedule and return the digest of all effects of its nodes, in order."""
    digest = hashlib.blake2b(digest_size=16)
    step = Node.step

    def observed(
        node: Node, now_ns: int, wall_s: float, inputs: Iterable[fx.Input]
    ) -> list[fx.Effect]:
        effects = step(node, now_ns, wall_s, inputs)
        digest.update(f"{node.uuid} {now_ns}".encode())
        for effect in effects:
            digest.update(_text(effect).encode())
        return effects

    Node.step = observed  # type: ignore[assignment,method-assign]  # restored below
    try:
        problem = run_seed(seed).problem
    finally:
        Node.step = step  # type: ignore[method-assign]  # as it was
    return digest.hexdigest() + (" failed" if problem else "")


def _text(effect: object) -> str:
    if isinstance(effect, SNAPSHOTS):
        return repr((type(effect).__name__, *effect[:-1]))  # an iterator over the state
    return repr(effect)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", default="0..299", help="A..B, both included")
    parser.add_argument("--workers", type=int, default=2)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", type=Path, metavar="FILE")
    what.add_argument("--compare", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    first, last = (int(part) for part in arguments.seeds.split(".."))
    known: dict[str, str] = {}
    if arguments.compare:
        known = json.loads(arguments.compare.read_text())
    seeds = [int(seed) for seed in known] or list(range(first, last + 1))
    with ProcessPoolExecutor(arguments.workers) as pool:
        found = dict(zip(map(str, seeds), pool.map(fingerprint, seeds), strict=True))
    if arguments.write:
        arguments.write.write_text(json.dumps(found, indent=0))
        return 0
    changed = [seed for seed, value in found.items() if value != known[seed]]
    for seed in changed:
        sys.stdout.write(f"seed {seed} differs: python -m qsync_sim --show {seed}\n")
    sys.stdout.write(f"{len(found) - len(changed)} equal, {len(changed)} differ\n")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
