"""Connections: clients' links with their limits, our own requests to peers and to clients."""
