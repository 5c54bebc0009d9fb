"""The states of an append, and their transitions.

    state                    next
    ----------------------   -----------------------------------------------------------------
    RESOLVE                  ACQUIRE_PIPELINE; START_PIPELINE if this append owns the pipeline;
                             AWAIT_DESIRED_REPLICAS if another broker is the primary;
                             UPDATE_SUSPEND to resume a suspended journal
    ACQUIRE_PIPELINE         START_PIPELINE; RESOLVE if the route changed
    START_PIPELINE           UPDATE_ASSIGNMENTS if the pipeline fits; else RESERVE_EPOCH;
                             RESOLVE if the route changed
    RESERVE_EPOCH            SEND_PIPELINE_SYNC; RESOLVE if the key space changed (J1)
    SEND_PIPELINE_SYNC       RECV_PIPELINE_SYNC
    RECV_PIPELINE_SYNC       SEND_PIPELINE_SYNC with the chosen state (J3); UPDATE_ASSIGNMENTS
                             once adopted; RESOLVE if a peer knows a later route; if acknowledged
                             bytes are missing: RECALL if a live broker outside of the route may
                             have them, ACCEPT_LOSS if the request accepts this
    RECALL                   RESOLVE
    ACCEPT_LOSS              RESOLVE
    UPDATE_ASSIGNMENTS       AWAIT_DESIRED_REPLICAS; RESOLVE after recording the epoch (J5)
    AWAIT_DESIRED_REPLICAS   VALIDATE_PRECONDITIONS; PROXY if another broker is the primary;
                             RESOLVE at the next revision if there are too many brokers, all of
                             them synchronised and none copying
    VALIDATE_PRECONDITIONS   STREAM_CONTENT; UPDATE_SUSPEND; RESOLVE if the route changed;
                             ACCEPT_LOSS if all brokers wait for the copy of a dead one
    UPDATE_SUSPEND           RESOLVE
    STREAM_CONTENT           READ_ACKNOWLEDGEMENTS once the proposal is sent
    READ_ACKNOWLEDGEMENTS    FINISHED once all brokers have acknowledged it
    any                      ERROR

RESERVE_EPOCH, RECALL and ACCEPT_LOSS do not exist in Gazette: its etcd transaction of
UPDATE_ASSIGNMENTS orders routes, but not the synchronisations of one route.
"""

from enum import Enum


class AppendState(Enum):
    """State of an append."""

    RESOLVE = "resolve"
    ACQUIRE_PIPELINE = "acquire_pipeline"
    START_PIPELINE = "start_pipeline"
    RESERVE_EPOCH = "reserve_epoch"
    SEND_PIPELINE_SYNC = "send_pipeline_sync"
    RECV_PIPELINE_SYNC = "recv_pipeline_sync"
    RECALL = "recall"
    ACCEPT_LOSS = "accept_loss"
    UPDATE_ASSIGNMENTS = "update_assignments"
    AWAIT_DESIRED_REPLICAS = "await_desired_replicas"
    VALIDATE_PRECONDITIONS = "validate_preconditions"
    UPDATE_SUSPEND = "update_suspend"
    STREAM_CONTENT = "stream_content"
    READ_ACKNOWLEDGEMENTS = "read_acknowledgements"
    ERROR = "error"
    PROXY = "proxy"
    FINISHED = "finished"


TERMINAL = (AppendState.ERROR, AppendState.PROXY, AppendState.FINISHED)
