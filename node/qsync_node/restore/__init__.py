"""An archive becomes the state of a new cluster."""
