"""Deadlines after which a scenario fails, each named after the event that it waits for.

Generous on purpose: a timeout here is a hang, not a measurement. `E2E_PATIENCE=3` triples those of
Kubernetes, for a slow machine.
"""

import os

PATIENCE = float(os.environ.get("E2E_PATIENCE", "1"))

READY_S = 120.0 * PATIENCE
COMMAND_S = 60.0 * PATIENCE
CONVERGE_S = 60.0 * PATIENCE
FAILOVER_S = 30.0 * PATIENCE
WRITER_S = 120.0 * PATIENCE
KUBERNETES_UP_S = 900.0 * PATIENCE
IMAGE_BUILD_S = 900.0 * PATIENCE
ROLL_S = 180.0 * PATIENCE
DELETE_S = 120.0 * PATIENCE
SPARK_S = 420.0 * PATIENCE
MOUNT_S = 180.0 * PATIENCE  # a kubelet passes on a changed Secret within about 90 s
CHART_S = 150.0 * PATIENCE
DRAIN_S = 120.0 * PATIENCE
API_SERVER_BACK_S = 120.0 * PATIENCE
AUDIT_S = 300.0 * PATIENCE

# Spans that a scenario lasts on purpose.
API_SERVER_STOPPED_S = 60.0
MACHINE_PAUSED_S = 20.0
PACKETS_DROPPED_S = 20.0
IDLE_S = 60.0
SETTLE_S = 5.0
NUMBERS_S = 12.0  # numbers that changed alone are written to status every ten seconds at most
LATE_S = 1.0

# Longest wait of a client, ten times the goal.
KILL_PAUSE_MS = 10_000.0 * PATIENCE
DELETE_PAUSE_MS = 5_000.0 * PATIENCE
# Writes continue while the fault lasts, or the scenario has shown nothing: no patience helps there.
MACHINE_PAUSE_MS = 0.9 * 1000 * min(MACHINE_PAUSED_S, PACKETS_DROPPED_S)
ALL_PAUSE_MS = 90_000.0 * PATIENCE  # no process is there: every process has to start
CHANGE_PAUSE_MS = 20_000.0 * PATIENCE
