"""The ballot: the vote of a member, and the rows that it refused (D2, T7)."""

from qsync_node.consensus.ballot import Ballot, Nack


def test_refusals_of_earlier_terms_are_obsolete() -> None:
    """Rows of a term are acknowledged in full, although the row was refused in an earlier one."""
    ballot = Ballot(term=4, nacks=(Nack(1, 5), Nack(2, 9), Nack(2, 12)))
    assert [ballot.nack_in(term) for term in (1, 2, 3, 4)] == [5, 9, 0, 0]
