"""Replication: machines that copy a log and count who has it. They know a log view, not the store.

master     one slave as the master sees it        slave     the slave's side
copies     who holds what: acknowledgement arithmetic        waiters   answers that wait for an offset
"""
