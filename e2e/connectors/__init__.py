"""Other people's connectors for Tarantool, each in its own language, against a cluster."""
