"""Administration as operations: clusters, groups, queries."""
