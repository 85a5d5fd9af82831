"""Monitoring of a process: its metrics, over HTTP and to an OTLP collector."""
