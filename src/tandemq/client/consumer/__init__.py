"""Consumers as machines: pulls, delivery, send-backs."""
