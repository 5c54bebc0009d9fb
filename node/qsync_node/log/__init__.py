"""The only code that touches data files: WAL, recovery, rewind, checkpoints."""
