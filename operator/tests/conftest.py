"""Settings of Hypothesis and of signals.

Examples have no deadline, because a busy machine is not a failure.
"""

import signal

from hypothesis import settings

# A shell without job control starts a command in the background with SIGINT ignored, which the
# commands under test would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
