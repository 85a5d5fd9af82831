"""Counters, rates and metrics."""
