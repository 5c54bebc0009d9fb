"""Pure builders: specification and state in, manifests out; one file for each kind of object."""
