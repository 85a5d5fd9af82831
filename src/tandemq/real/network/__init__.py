"""Sockets of the server loop: addresses, admission, TLS."""
