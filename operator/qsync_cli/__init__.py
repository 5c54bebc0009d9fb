"""The command line: `qsync` on a laptop, `kubectl qsync` as a plugin. One verb per file."""
