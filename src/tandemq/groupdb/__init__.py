"""Group configurations in a database, and the task that applies them to the registry.

administrator ─► ha config set ─► database ─► publisher ─► registry: groups/<brokerName>/config ─► brokers

schema         the tables
database       a change of a group is one transaction with a complete check of the new configuration
audit          the log of all changes
publisher      applies the configurations to the registry; idempotent, may be killed at any point and run again
publications   what publishers report: refusals, and that they run
"""
