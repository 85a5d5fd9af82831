"""Administration as operations: clusters, groups, queries for messages."""
