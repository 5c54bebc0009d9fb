"""The drivers of connectors in Python."""
