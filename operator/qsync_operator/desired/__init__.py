"""Pure builders of manifests from specification and state, one file for each kind of object."""
