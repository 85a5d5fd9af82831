"""Integrity: the log and its queue entries are verified while the broker runs, and repaired."""
