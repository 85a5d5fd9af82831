"""Core and real world put together: a process."""
