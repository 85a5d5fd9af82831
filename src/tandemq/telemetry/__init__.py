"""Metrics for monitoring: families, their collection in slices, and the text formats of Prometheus."""
