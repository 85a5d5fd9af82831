"""Periodic maintenance: registration at name servers, retention, disk space, syncs."""
