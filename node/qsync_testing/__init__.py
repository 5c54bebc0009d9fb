"""Helpers that tests, benchmarks and end-to-end scenarios share. No product code imports them."""
