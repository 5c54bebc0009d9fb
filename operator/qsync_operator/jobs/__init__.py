"""Audits and compactions: one Job for each, its schedule and its result."""
