"""Queues of a consumer: allocation, rebalance, messages in process, locks."""
