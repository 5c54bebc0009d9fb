"""The protocol between members without I/O: handshake, frames, keep-alive, addresses (P1).

`server/peers.py` drives it with sockets.
"""
