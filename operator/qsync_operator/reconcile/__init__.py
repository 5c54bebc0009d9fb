"""The reconciler of one cluster, the same on every platform, and the interface of a platform."""
