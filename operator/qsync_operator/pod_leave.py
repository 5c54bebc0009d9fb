"""`qsync_agent.leave` by the name that running pods and earlier versions use.

An operator also runs pods with images of other versions (docs/upgrades.md). Therefore this name
of the program never changes.
"""

import sys

from qsync_agent.leave import main

if __name__ == "__main__":
    sys.exit(main())
