"""Coordination: what the brokers of a group agree on, through a registry. State machines send requests and take the
responses later; nothing here waits.

administrator ─► database ─► groups/<brokerName>/config ┐
                                                        ├─► brokers: who is master, who may read and write
brokers ◄──────────────────► groups/<brokerName>/state ─┘
        └─ ephemeral ──────► groups/<brokerName>/live/<brokerId>

lease          until when a member may serve          liveness       which peers are alive; checks in a row
election       which member becomes master            in_sync        the in-sync set and the confirm offset
permission     what the record allows                 slave_consume  when the slave serves reads

registry/      the registry: nodes and records in them
    interface      operations, outcomes, session events (tandemq.registry, which the shells know too)
    records        the table of nodes, and the JSON records in them
    lineage        whether a record continues one that was seen
    transition     which changes of a group's configuration are safe
    tree           a registry as a plain object: inside the name server, and under simulation
    embedded       the broker's connection to the registry of a name server
    view           the group as one broker reads it; its own writes, one at a time

member/        one broker's part in its group, top first
    machine        inputs, outputs, and the order of decisions
    status         what operators see
    follower       stage and replication role by the record     proposals   claims, in-sync changes
    heartbeats     heartbeats and reports between members
    handover       planned handovers                            takeover    in place of a failed holder
    service        stage and permissions                        diagnosis   problems with the registry
    founding       a missing record                             outputs     effects, own writes
    older_record   an older copy of the record
    held_lease     the member's lease                           facts       configuration, log, peers
    orders         settings, effects, results
"""
