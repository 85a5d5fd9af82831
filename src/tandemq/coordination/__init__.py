"""Coordination: what a broker group agrees on, through a registry. Machines ask, and are answered later; no waiting.

administrator ─► database ─► groups/<brokerName>/config ┐
                                                        ├─► brokers: who is master, who may read and write
brokers ◄──────────────────► groups/<brokerName>/state ─┘
        └─ ephemeral ──────► groups/<brokerName>/live/<brokerId>

registry       the words: operations, outcomes, session events (tandemq.registry, known to the shells too)
records        the table of nodes, and the JSON records in them
tree           a registry as a plain object: inside the name server, and under simulation
"""
