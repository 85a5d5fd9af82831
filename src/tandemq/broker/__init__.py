"""One broker as a plain object: connections and requests in, one commit per turn, responses out.

    node            runs a turn over the parts; parts builds them
    role            the broker's role: fixed by settings (ha/) or by a registry (failover/)
    send/, pull/    the two hot paths; delayed messages, messages sent back, held pulls
    processors/     all other requests, by family of request codes
    state/          topics, groups, offsets, online clients, damaged ranges, and how they are saved
    connections/    clients' connections and their limits, requests to clients and to other brokers
    maintenance/    registration at name servers, retention, syncs, statistics, silent clients
    ha/             replication sessions, tied to connections and store
    failover/       the broker's part in a group with a registry
    integrity/      scrubbing and repair

A turn handles events, then received bytes, then due tasks; then it commits (`store.commit()`), acknowledges, and
replicates. Nothing that depends on a write is sent before that write has returned.
"""
