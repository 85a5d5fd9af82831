"""Group configurations in a database, and the task that applies them to the registry.

administrator ─► ha config set ─► database ─► publisher ─► registry: groups/<brokerName>/config ─► brokers

database       tables; a change of a group is one transaction with a complete check of the new configuration
publisher      applies the configurations to the registry; idempotent, may be killed at any point and run again
"""
