"""Failover: what a broker does as a member of a group whose roles come from a registry."""
