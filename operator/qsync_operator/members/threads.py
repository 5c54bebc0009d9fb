"""Runs blocking conversations with members, each in its own thread.

The event loop's pool is unsuitable: it has a few threads for all clusters, and the API server's
client needs one for each request. A few members that accept a connection and never answer would
block all of them, and with them every cluster and the Lease.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
AnswerT = TypeVar("AnswerT")


async def in_thread(
    work: Callable[Arguments, AnswerT], *arguments: Arguments.args, **named: Arguments.kwargs
) -> AnswerT:
    """Return or raise the result of `work`. If the waiter is cancelled, the thread still ends."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[AnswerT] = loop.create_future()

    def settle(answer: AnswerT | None, error: BaseException | None) -> None:
        if done.done():
            return  # the waiter was cancelled
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(answer)  # type: ignore[arg-type]  # the result of `work`

    def run() -> None:
        answer, failed = None, None
        try:
            answer = work(*arguments, **named)
        except BaseException as error:  # noqa: BLE001  # passed on to the waiter
            failed = error
        try:
            loop.call_soon_threadsafe(settle, answer, failed)
        except RuntimeError:
            return  # the loop has ended meanwhile

    # A daemon thread: the operator's exit must not wait for a member.
    threading.Thread(target=run, name=f"member {work.__name__}", daemon=True).start()
    return await done
