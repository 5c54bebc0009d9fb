"""Encoders and decoders of rows, clocks, frames and files. Pure, and shared with the Spark jobs."""
