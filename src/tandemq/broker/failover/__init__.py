"""Failover: the broker as a member of a group whose roles come from a registry."""
