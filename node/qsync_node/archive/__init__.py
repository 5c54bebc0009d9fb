"""Read-only access to an archive, shared by all kinds of readers."""
