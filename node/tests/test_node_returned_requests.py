"""A request that a former leader returns unlogged runs at the leader that is known then (T10)."""

from worlds import REPLACE, Driven, put


def test_request_that_a_paused_leader_returns_runs_at_the_new_leader() -> None:
    driven = Driven(3)
    old = driven.leader()
    member = driven.followers()[0]
    old.pause()
    sync = driven.send(member, REPLACE, put(1, "value"))
    driven.run(3_000)
    assert driven.leader() is not old
    assert sync not in driven.answers

    old.resume()

    assert driven.run(1_000, lambda: sync in driven.answers)
    assert driven.answers[sync].code == 0
