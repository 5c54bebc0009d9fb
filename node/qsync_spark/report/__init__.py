"""The result of an audit, and its documents."""
