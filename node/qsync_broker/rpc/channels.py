"""Options of channels to brokers."""

MESSAGE_MAX = 16 << 20
"""Maximum size of a message in bytes."""

CHANNEL_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_receive_message_length", MESSAGE_MAX),
    ("grpc.max_send_message_length", MESSAGE_MAX),
    # A broker that was killed is back within a second. By default, gRPC waits a second, and later
    # up to two minutes, before it connects again.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
]
