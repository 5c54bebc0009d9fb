"""How long anything may take before a scenario fails; each named after what it waits for.

Generous on purpose: a timeout here is a hang, not a measurement.
"""

READY_S = 120.0
COMMAND_S = 60.0
CONVERGE_S = 60.0
FAILOVER_S = 30.0
WRITER_S = 120.0
KUBERNETES_UP_S = 900.0
IMAGE_BUILD_S = 900.0
ROLL_S = 180.0
