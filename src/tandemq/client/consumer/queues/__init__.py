"""Queues of a consumer: allocation to members, pulls, messages in process, locks."""
