"""The gRPC interface of brokers, compatible with Gazette's clients."""
