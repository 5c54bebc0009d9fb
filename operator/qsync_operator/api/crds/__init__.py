"""Custom resource definitions, generated from the models: `python -m qsync_operator.api.crds`."""
