"""The drivers of connectors, a folder for each language."""
