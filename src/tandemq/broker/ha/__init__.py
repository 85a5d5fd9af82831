"""Replication tied to the broker: sessions of slaves, the session to a master, tables copied beside the log."""
