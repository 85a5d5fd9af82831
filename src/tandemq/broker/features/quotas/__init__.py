"""Limits of users, topics and consumer groups. Source: docs/reference/quotas.md."""
