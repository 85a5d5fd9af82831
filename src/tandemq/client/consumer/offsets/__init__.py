"""Offsets of a consumer: loaded and committed, at brokers or in a file of this machine."""
