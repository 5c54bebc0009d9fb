"""The specification in TLA+ (`node/spec`): its model checker, and recorded runs against it."""
