"""State of the cluster for pages and API."""
