"""Words: messages, topics, groups, routes, commands. No bytes, no I/O, no behaviour beyond checks."""
