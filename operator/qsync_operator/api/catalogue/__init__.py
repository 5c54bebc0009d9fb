"""The catalogue of conditions, reasons, Events and alerts: meaning, action, severity, runbook.

Other modules use the names of `reasons`, and tests compare the catalogue with the code. Everything
that users read about a name comes from here: `make references` writes the texts into
docs/conditions.md, `qsync explain` prints them, Events take their type from it, and alerts their
severity, summary and runbook.

Texts are Markdown, and links are relative to docs/. Each begins with a capital letter and ends
without a full stop.
"""
