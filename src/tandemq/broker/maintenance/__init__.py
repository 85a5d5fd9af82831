"""Maintenance by the clock: registration at name servers, retention, disk space, metadata on disk."""
