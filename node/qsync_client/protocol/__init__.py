"""The protocol: numbers, greeting, log-in, packets, and the client's side of a connection.

Server, operator and brokers import these definitions. They are here because the client must run
without the node.
"""
