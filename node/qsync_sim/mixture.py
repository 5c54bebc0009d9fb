"""The mixture of faults: how often each of them happens, relative to the others."""

from qsync_sim import faults, strikes

FAULTS: list[tuple[int, faults.Fault]] = [
    (5, strikes.strand_a_rollback),
    (14, strikes.ambush),
    (8, strikes.lose_what_was_promised),
    (5, strikes.behind_the_back),
    (10, faults.kill),
    (10, faults.power_loss),
    (2, faults.power_loss_everywhere),
    (6, faults.partition),
    (6, faults.isolate_leader),
    (5, faults.one_way),
    (4, faults.break_connections),
    (4, faults.slow_network),
    (6, faults.slow_disk),
    (5, faults.failed_fsync),
    (3, faults.full_disk),
    (5, faults.pause),
    (3, faults.clock),
    (3, faults.nack),
    (2, faults.nack_by_most),
    (4, faults.nominate),
    (4, faults.demote),
    (2, faults.fence),
    (5, faults.snapshot),
    (4, faults.add_member),
    (3, faults.remove_member),
    (3, faults.lose_disk),
    (2, faults.raise_quorum),
    (2, faults.change_key_window),
]
