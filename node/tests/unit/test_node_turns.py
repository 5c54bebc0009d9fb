"""Turns of the event loop: when one follows, and that none follows the end of the process run."""

import asyncio
import time

from qsync_node.consensus import effects as fx
from qsync_node.server.turns import Turns

INPUT = fx.SessionClosed(1)
LATER_NS = 1 << 62


def test_no_step_follows_the_end() -> None:
    """The node might count rows that never reach the disk (D4)."""
    steps: list[list[fx.Input]] = []

    def step(inputs: list[fx.Input]) -> int:
        steps.append(inputs)
        return LATER_NS

    async def main() -> None:
        turns = Turns(asyncio.get_running_loop(), lambda: None, step, errors.append)
        turns.feed(INPUT)
        await asyncio.sleep(0)
        assert steps == [[INPUT]]
        turns.feed(INPUT)
        turns.stop()
        await asyncio.sleep(0)
        turns.deliver([INPUT])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        turns.feed(INPUT)
        await asyncio.sleep(0)
        assert steps == [[INPUT]]

    errors: list[Exception] = []
    asyncio.run(main())
    assert not errors


def test_step_that_fails_is_the_last_one() -> None:
    errors: list[Exception] = []

    def step(inputs: list[fx.Input]) -> int:
        raise KeyError("bug")

    async def main() -> None:
        def end(error: Exception) -> None:
            errors.append(error)
            turns.stop()

        turns = Turns(asyncio.get_running_loop(), lambda: None, step, end)
        for _ in range(3):
            turns.feed(INPUT)
            await asyncio.sleep(0)
        assert len(errors) == 1

    asyncio.run(main())


def test_input_that_arrives_during_a_step_gets_the_next_turn() -> None:
    """While answers are written, a session passes the requests that waited for them."""
    steps: list[list[fx.Input]] = []

    async def main() -> None:
        def step(inputs: list[fx.Input]) -> int:
            steps.append(inputs)
            if len(steps) == 1:
                turns.feed(INPUT)
            return LATER_NS

        turns = Turns(asyncio.get_running_loop(), lambda: None, step, errors.append)
        turns.feed(INPUT)
        for _ in range(3):
            await asyncio.sleep(0)
        assert steps == [[INPUT], [INPUT]]

    errors: list[Exception] = []
    asyncio.run(main())
    assert not errors


def test_turn_comes_at_the_deadline_although_a_later_one_was_planned() -> None:
    deadlines = [LATER_NS, 0, LATER_NS]
    errors: list[Exception] = []

    async def main() -> None:
        is_over = asyncio.Event()

        def step(inputs: list[fx.Input]) -> int:
            if len(deadlines) == 1:
                is_over.set()
            return deadlines.pop(0) or time.monotonic_ns() + 1_000_000

        turns = Turns(asyncio.get_running_loop(), lambda: None, step, errors.append)
        for _ in range(2):
            turns.feed(INPUT)
            await asyncio.sleep(0)
        await asyncio.wait_for(is_over.wait(), 10)

    asyncio.run(main())
    assert not errors
