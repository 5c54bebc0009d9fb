"""Answers: every request gets exactly one (K1)."""

from collections import OrderedDict

from qsync_node.consensus import effects as fx
from qsync_node.consensus.context import Context
from qsync_node.consensus.messages import ForwardReply
from qsync_node.transactions.calls import NODE_SESSION, Call
from qsync_node.transactions.homes import StreamHomes
from qsync_node.transactions.stages import RequestStage, stage_after_answer


class Answers:
    """The calls without an answer, and the way of an answer to its session or to its member.

    Attributes:
        waiting: unanswered calls, oldest first.
    """

    def __init__(self, context: Context, homes: StreamHomes) -> None:
        self.context = context
        self.homes = homes
        self.waiting: OrderedDict[Call, None] = OrderedDict()

    def answer(self, call: Call, tuples: list[bytes], index: int = 0) -> None:
        self.finish(call, 0, "", tuples, index)

    def refuse(self, call: Call, code: int, reason: str, index: int = 0) -> None:
        self.finish(call, code, reason, [], index)

    def finish(self, call: Call, code: int, reason: str, tuples: list[bytes], index: int) -> None:
        """Answer a call.

        Args:
            call: the request; the outcome of one whose deadline has passed is dropped.
            code: 0, or the error.
            reason: the sentence of the error.
            tuples: the answer.
            index: of the newest row that the answer depends on.
        """
        if call.stage is RequestStage.EXPIRED:
            return
        assert not (code and tuples), "an error has no tuples"
        call.become(stage_after_answer(code))
        self._send(call, code, reason, tuples, index)

    def expire(self, call: Call, code: int, reason: str) -> None:
        """Answer a call whose deadline has passed; its later outcome is dropped (G3)."""
        call.become(RequestStage.EXPIRED)
        self._send(call, code, reason, [], 0)

    def _send(self, call: Call, code: int, reason: str, tuples: list[bytes], index: int) -> None:
        assert call.is_done, "K1: the state comes first"
        self.waiting.pop(call, None)
        if code:
            self.homes.on_refused(call, self.context.now_ns)
        if call.link:
            self.reply(call, int(code), reason, tuples, index)
        elif call.session != NODE_SESSION:
            self.context.out.append(
                fx.Answer(call.session, call.sync, int(code), reason, tuples, index, call.position)
            )

    def reply(self, call: Call, code: int, reason: str, tuples: list[bytes], index: int) -> None:
        """Return the outcome of a forwarded request to the member that forwarded it (T10)."""
        if call.link in self.context.links:
            message = ForwardReply(call.sync, code, reason, tuples, index, call.position or b"")
            self.context.send(call.link, message)

    def drop(self, call: Call) -> None:
        """Expect no answer to a call any more."""
        call.become(RequestStage.RETURNED)
        self.waiting.pop(call, None)

    def defer(self, call: Call) -> None:
        """Return a local client's read to its session, which repeats it later."""
        assert call.is_deferrable, "K1: its session is elsewhere, or would repeat it out of order"
        self.drop(call)
        self.context.out.append(fx.Deferred(call.session, call.sync))
