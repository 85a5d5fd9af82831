"""The lake: Delta tables of messages, written and read."""
