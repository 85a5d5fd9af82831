"""Offsets of a consumer: read, kept and committed, at brokers or in a file."""
