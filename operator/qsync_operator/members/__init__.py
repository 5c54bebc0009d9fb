"""Connections to members, and the requests that every platform sends over them."""
