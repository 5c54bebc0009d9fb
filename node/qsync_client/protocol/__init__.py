"""The part of the protocol that client and server share: numbers, greeting, log-in and packets.

The client must run without the node, so these definitions are here and the node imports them.
"""
