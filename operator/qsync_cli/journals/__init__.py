"""Commands of `qsync journals`: the journals of a cluster, through any of its brokers."""
