"""Entry point of the standalone `kubectl-qsync`, which PyInstaller builds.

Commands start other programs of Qsync by `sys.executable -m MODULE`. In a standalone program
`sys.executable` is this file, so it runs the named module as the interpreter would.
"""

import multiprocessing
import runpy
import sys

if __name__ == "__main__":
    multiprocessing.freeze_support()
    if len(sys.argv) > 2 and sys.argv[1] == "-m":
        module = sys.argv[2]
        del sys.argv[1:3]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        from qsync_cli.main import main

        main()
