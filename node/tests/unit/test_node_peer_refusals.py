"""Refused handshakes are counted, and logged at once and then once a minute."""

import io
import json
from typing import Any

from qsync_node.server.logs import Log
from qsync_node.server.refusals import KINDS_MAX, REASON_MAX, REPEAT_S, Refusals


class ReadableRefusals:
    """Refusals with a readable log."""

    def __init__(self) -> None:
        self.stream = io.StringIO()
        self.refusals = Refusals(Log("reader", stream=self.stream))

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


def test_repeated_refusal_is_logged_once_a_minute_with_its_number() -> None:
    refused = ReadableRefusals()
    for second in range(int(REPEAT_S) + 1):
        refused.refusals.on_dialled("orders-0", "h:1", "wrong secret", float(second))
    first, second_line = refused.lines()
    assert (first["event"], first["level"], first["peer"]) == (
        "link_refused",
        "warning",
        "orders-0",
    )
    assert first["reason"] == "wrong secret"
    assert "repeated" not in first
    assert second_line["repeated"] == REPEAT_S - 1
    assert refused.refusals.count == REPEAT_S + 1


def test_another_reason_or_another_end_is_logged_at_once() -> None:
    refused = ReadableRefusals()
    refused.refusals.on_dialled("orders-0", "h:1", "wrong secret", 0.0)
    refused.refusals.on_dialled("orders-0", "h:1", "another replica set", 0.0)
    refused.refusals.on_dialled("orders-1", "h:2", "wrong secret", 0.0)
    refused.refusals.on_accepted("10.0.0.1", "wrong secret", 0.0)
    assert [line["event"] for line in refused.lines()] == ["link_refused"] * 3 + ["hello_refused"]


def test_status_names_a_refusal_until_a_handshake_succeeds_or_the_target_is_removed() -> None:
    refusals = ReadableRefusals().refusals
    refusals.on_dialled("orders-0", "h:1", "wrong secret", 0.0)
    refusals.on_dialled("orders-1", "h:2", "wrong secret", 0.0)
    assert refusals.of_targets == {"orders-0": "wrong secret", "orders-1": "wrong secret"}
    refusals.on_linked("orders-0")
    refusals.keep_targets(set())
    assert refusals.of_targets == {}


def test_flood_from_many_addresses_fills_neither_the_log_nor_the_memory() -> None:
    refused = ReadableRefusals()
    for number in range(10 * KINDS_MAX):
        refused.refusals.on_accepted(f"10.0.{number // 256}.{number % 256}", "x" * 9999, 1.0)
    lines = refused.lines()
    assert len(lines) == KINDS_MAX + 1
    assert len(lines[0]["reason"]) == REASON_MAX
    # After the period, other ends have lines again, and old ones are forgotten.
    refused.refusals.on_accepted("10.9.9.9", "late", 1.0 + REPEAT_S)
    assert refused.lines()[-1]["host"] == "10.9.9.9"
    assert refused.refusals.count == 10 * KINDS_MAX + 1


def test_flood_of_hellos_does_not_hide_that_a_member_refuses_this_one() -> None:
    refused = ReadableRefusals()
    for number in range(2 * KINDS_MAX):
        refused.refusals.on_accepted(f"10.0.0.{number}", "wrong secret", 1.0)
    refused.refusals.on_dialled("orders-0", "h:1", "wrong secret", 2.0)
    assert refused.lines()[-1]["event"] == "link_refused"
