"""Metrics for monitoring: families, their collection in slices, the text formats of Prometheus, and OTLP."""
