"""Pure builders of manifests and configuration files, one module for each kind of object."""
