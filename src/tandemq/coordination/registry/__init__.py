"""The registry as members use it: nodes, records, the embedded registry, the view of a group."""
