"""The programs of a database pod: they start, stop and query the node and the broker of the pod."""
