"""The registry as members use it: nodes and records, the embedded registry, a group's view."""
