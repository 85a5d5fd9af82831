"""Coordination: what a broker group agrees on, through a registry. Machines ask, and are answered later; no waiting.

administrator ─► database ─► groups/<brokerName>/config ┐
                                                        ├─► brokers: who is master, who may read and write
brokers ◄──────────────────► groups/<brokerName>/state ─┘
        └─ ephemeral ──────► groups/<brokerName>/live/<brokerId>

registry       the words: operations, outcomes, session events (tandemq.registry, known to the shells too)
records        the table of nodes, and the JSON records in them
tree           a registry as a plain object: inside the name server, and under simulation
embedded       the broker's side of the one inside the name server

member         one broker's part in its group: the machine a broker drives
view           the group as that broker sees it; its own writes of the state, one at a time
lease          who may serve, until when          liveness        who lives; looks that must agree in a row
permission     who may do what, by the record     takeover        in the place of one that is gone
election       who becomes master                 handover        switch, hand-back
insync         whose copy counts                  slave_consume   reading from the slave: rules and offsets
orders, status the words between a member and its broker
"""
