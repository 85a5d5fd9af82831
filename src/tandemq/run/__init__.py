"""Processes: brokers, name servers and clusters, built from the core and the I/O shell."""
