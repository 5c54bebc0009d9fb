"""`python -m qsync_local DIRECTORY`: the supervisor of one local cluster."""

import sys

from qsync_local.supervisor import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
