"""Data model: messages, topics, consumer groups, commands. No encoding, no I/O, no behaviour beyond validation."""
