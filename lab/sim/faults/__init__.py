"""Faults injected into a run, drawn from its seed."""
