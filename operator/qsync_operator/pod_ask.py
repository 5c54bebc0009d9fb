"""`qsync_agent.ask` by the name that running pods and earlier versions use.

An operator also runs pods with images of other versions (docs/upgrades.md). Therefore this name
of the program never changes.
"""

import sys

from qsync_agent.ask import main

if __name__ == "__main__":
    sys.exit(main())
