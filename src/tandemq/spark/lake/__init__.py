"""Lake: Delta tables of messages, their files and their maintenance."""
