"""Ports of members and brokers on Kubernetes, unless the specification names others."""

DEFAULT_IPROTO = 3301
DEFAULT_ADMIN = 8081
DEFAULT_TLS = 3302
DEFAULT_BROKER = 8080
PEER_PORT = 8082
"""Port of brokers for each other; `crds.rules` refuses it for anything else."""
TLS_PARAMETER = "transport=ssl"
"""Parameter of Tarantool's URIs for a connection with TLS."""
