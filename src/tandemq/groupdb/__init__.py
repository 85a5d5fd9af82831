"""Group configurations in a database, and the task that carries them to the registry.

administrator ─► ha config set ─► database ─► carry ─► registry: groups/<brokerName>/config ─► brokers

database       tables, and every change of a group as one transaction that is checked as a whole
carry          makes the registry say what the database says; may be killed anywhere and run again
"""
