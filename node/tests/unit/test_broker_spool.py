"""The spool of a journal: transitions, mismatches, and the choice of a synchronisation."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qsync_broker.chosen_ends import ends_after
from qsync_broker.operations import NO_SUM, CommitAppend, Roll, WriteContent
from qsync_broker.spool import Choice, Proposal, Spool, SpoolMismatchError, Version
from qsync_node.format.journals import NO_ROUTE, ChosenEnds, JournalRow

NOW = 1_700_000_000


def sha1(data: bytes) -> bytes:
    return hashlib.sha1(data).digest()


def spool_with(*appends: bytes, confirmed: int = 0) -> Spool:
    spool = Spool("a/journal", 7, 1)
    spool.adopt(Choice(5, 0, 0, b"", 1, True))
    for data in appends:
        spool.receive(0, data)
        spool.commit(spool.proposal(b""), NOW)
    spool.confirm(confirmed)
    return spool


def test_committed_bytes_have_the_sum_of_the_whole_fragment() -> None:
    spool = spool_with(b"one", b"two")
    assert (spool.end, spool.sum) == (6, sha1(b"onetwo"))
    assert spool.state.first_append == NOW


def test_empty_spool_has_the_zero_sum() -> None:
    assert spool_with().sum == NO_SUM


def test_content_of_an_append_arrives_in_parts() -> None:
    spool = spool_with(b"one")
    assert spool.receive(0, b"tw") == WriteContent(spool.key, 3, b"tw")
    assert spool.receive(2, b"o") == WriteContent(spool.key, 5, b"o")
    proposal = spool.proposal(b"registers")
    assert proposal == Proposal(6, sha1(b"onetwo"), b"registers")
    assert spool.commit(proposal, NOW) == CommitAppend(spool.state)
    assert spool.registers == b"registers"


def test_missing_content_is_refused() -> None:
    spool = spool_with(b"one")
    spool.receive(0, b"tw")
    with pytest.raises(SpoolMismatchError, match="begins at byte 3 of the append, but 2"):
        spool.receive(3, b"o")


@pytest.mark.parametrize(
    "proposal",
    [
        Proposal(5, sha1(b"onetw"), b""),
        Proposal(6, sha1(b"onetwX"), b""),
        Proposal(7, sha1(b"onetwo"), b""),
    ],
)
def test_proposal_that_does_not_fit_the_received_bytes_is_refused(proposal: Proposal) -> None:
    spool = spool_with(b"one")
    spool.receive(0, b"two")
    with pytest.raises(SpoolMismatchError):
        spool.commit(proposal, NOW)
    assert (spool.end, spool.delta) == (3, 3)


def test_rolled_back_content_leaves_no_trace() -> None:
    spool = spool_with(b"one")
    spool.receive(0, b"XXX")
    spool.rollback()
    spool.receive(0, b"two")
    spool.commit(spool.proposal(b""), NOW)
    assert spool.sum == sha1(b"onetwo")


def test_confirmed_end_never_exceeds_the_end_nor_falls() -> None:
    spool = spool_with(b"one", b"two")
    assert spool.confirm(3)
    assert not spool.confirm(2)
    assert not spool.confirm(9)
    assert spool.confirmed == 3


def test_roll_completes_the_fragment() -> None:
    spool = spool_with(b"one", b"two", confirmed=6)
    key = spool.key
    assert spool.roll(6, 3) == Roll(key, 6, sha1(b"onetwo"), spool.state)
    assert (spool.begin, spool.end, spool.confirmed, spool.codec) == (6, 6, 6, 3)
    spool.receive(0, b"three")
    spool.commit(spool.proposal(b""), NOW)
    assert spool.sum == sha1(b"three")


def test_roll_waits_for_confirmation() -> None:
    spool = spool_with(b"one", b"two", confirmed=3)
    with pytest.raises(SpoolMismatchError, match="3 is confirmed"):
        spool.roll(6, 1)


def test_recovered_spool_continues_where_it_was() -> None:
    spool = spool_with(b"one", b"two", confirmed=3)
    versions = [Version(3, b"", hashlib.sha1(b"one")), Version(6, b"", hashlib.sha1(b"onetwo"))]
    again = Spool.recovered(spool.state, versions)
    assert again.state == spool.state
    again.receive(0, b"three")
    again.commit(again.proposal(b""), NOW)
    assert again.sum == sha1(b"onetwothree")


# --- adoption (J4) --------------------------------------------------------------------------------


def test_broker_of_the_source_epoch_discards_what_follows_the_chosen_end() -> None:
    spool = spool_with(b"one", b"two", b"three", confirmed=3)
    operation = spool.adopt(Choice(9, 5, 6, b"", 1, True))
    assert operation == CommitAppend(spool.state)
    assert (spool.epoch, spool.end, spool.confirmed, spool.sum) == (9, 6, 3, sha1(b"onetwo"))


def test_broker_of_the_source_epoch_completes_all_up_to_the_chosen_end() -> None:
    spool = spool_with(b"one", b"two", b"three", confirmed=3)
    operation = spool.adopt(Choice(9, 5, 6, b"r", 1, False))
    assert isinstance(operation, Roll)
    assert (operation.completed_end, operation.completed_sum) == (6, sha1(b"onetwo"))
    assert (spool.begin, spool.end, spool.registers) == (6, 6, b"r")


def test_broker_that_missed_an_epoch_keeps_confirmed_bytes_only() -> None:
    spool = spool_with(b"one", b"two", confirmed=3)
    operation = spool.adopt(Choice(9, 8, 30, b"", 1, False))
    assert isinstance(operation, Roll)
    assert (operation.completed_end, operation.completed_sum) == (3, sha1(b"one"))
    assert (spool.begin, spool.end) == (30, 30)


@pytest.mark.parametrize(
    ("ends", "kept"),
    [
        (((4, 0), (7, 6), (8, 20)), b"onetwo"),  # epoch 7 ended the broker's own
        (((5, 0), (8, 20)), b"onetwothree"),
        (((4, 0), (8, 5)), b"one"),
        (((4, 0), (7, 1)), b"one"),  # it is confirmed
        (((7, 6), (8, 20)), b"one"),  # a synchronisation before epoch 7 may have ended it
        (((4, 0),), b"one"),
    ],
)
def test_broker_that_missed_an_epoch_keeps_bytes_up_to_its_proven_end(
    ends: ChosenEnds, kept: bytes
) -> None:
    spool = spool_with(b"one", b"two", b"three", confirmed=3)
    operation = spool.adopt(Choice(9, 8, 30, b"", 1, False, ends))
    assert isinstance(operation, Roll)
    assert (operation.completed_end, operation.completed_sum) == (len(kept), sha1(kept))


def test_last_ends_are_recorded() -> None:
    journal = JournalRow("a", {}, 0, 0, 9, 8, NO_ROUTE, 2, 2, (), ((4, 0), (8, 20)))
    assert ends_after(journal, 9, 30, has_all=True) == ((4, 0), (8, 20), (9, 30))
    assert ends_after(journal, 9, 30, has_all=False) == ((9, 30),)
    # The loss of bytes was accepted: what former brokers have is not the journal's.
    assert ends_after(journal._replace(epoch=0), 9, 30, has_all=True) == ((9, 30),)
    for epoch in range(10, 20):
        ends = ends_after(journal, epoch, 30, has_all=True)
        journal = journal._replace(epoch=epoch, ends=ends)
    assert journal.ends == tuple((epoch, 30) for epoch in range(12, 20))


def test_fragment_that_a_broker_lacks_cannot_be_continued() -> None:
    spool = spool_with(b"one", confirmed=3)
    with pytest.raises(SpoolMismatchError, match="has no commit of epoch 8"):
        spool.adopt(Choice(9, 8, 3, b"", 1, True))


def test_fragment_never_begins_before_the_end() -> None:
    spool = spool_with(b"one", b"two", confirmed=6)
    with pytest.raises(SpoolMismatchError, match="cannot begin a fragment at 3"):
        spool.roll(3, 1)


def test_empty_fragment_continues_where_it_is() -> None:
    spool = spool_with()
    assert spool.adopt(Choice(9, 5, 0, b"", 1, False)) == CommitAppend(spool.state)


@given(st.lists(st.tuples(st.sampled_from("crxo"), st.binary(max_size=20)), max_size=30))
def test_spool_agrees_with_a_list_of_bytes(steps: list[tuple[str, bytes]]) -> None:
    """Commits, rollbacks, confirmations and rolls in any order leave the sum of the content."""
    spool, content, begin = spool_with(), b"", 0
    for step, data in steps:
        if step == "c":
            spool.receive(0, data)
            spool.commit(spool.proposal(b""), NOW)
            content += data
        elif step == "r":
            spool.receive(0, data)
            spool.rollback()
        elif step == "x":
            spool.confirm(spool.end)
        elif spool.confirmed == spool.end:
            begin = spool.end
            spool.roll(begin, 1)
        assert spool.end == len(content)
        assert spool.sum == (sha1(content[begin:]) if len(content) > begin else NO_SUM)


def test_appends_without_content_add_nothing_to_an_idle_journal() -> None:
    """Pulses and barriers continue for as long as the journal exists."""
    spool = spool_with(b"one", confirmed=3)
    for number in range(10):
        spool.commit(spool.proposal(str(number).encode()), NOW)
        spool.confirm(3)
    assert len(spool._versions) == 1
    assert (spool.end, spool.registers, spool.sum) == (3, b"9", sha1(b"one"))


def test_next_fragment_has_a_first_append_of_its_own() -> None:
    spool = spool_with(b"one", confirmed=3)
    spool.roll(3, 1)
    spool.receive(0, b"two")
    spool.commit(spool.proposal(b""), NOW + 60)
    assert spool.state.first_append == NOW + 60
