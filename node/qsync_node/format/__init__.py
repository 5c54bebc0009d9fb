"""Bytes to values and back: rows, clocks, frames, files. Pure, and shared with the Spark jobs."""
