"""The only code that reads or writes data files: WAL, recovery, truncation, snapshots."""
