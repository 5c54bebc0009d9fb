"""`python -m qsync_agent`, the entry point of the node's image."""

import sys

from qsync_agent.start import main

if __name__ == "__main__":
    sys.exit(main())
