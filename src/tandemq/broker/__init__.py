"""One broker as a plain object: connections and requests in, one commit per turn, responses out.

    node            runs a turn over the parts; parts builds them
    kernel/         what a broker may do in a turn, the settings in force, the output of the turn
    roles/          the role of the broker: from its settings, or from the registry of its group
    send/, pull/    the two hot paths; held pulls, acknowledgements
    features/       delayed messages, timed messages, transactions
    processors/     all other requests, by family of request codes
    state/          topics, groups, offsets, online clients, damaged ranges, and how they are saved
    connections/    clients' connections and their limits, requests to clients and to other brokers
    maintenance/    registration at name servers, retention, syncs, statistics, silent clients
    ha/             replication sessions, tied to connections and store
    integrity/      scrubbing and repair

A turn handles events, then received bytes, then due tasks; then it commits (`store.commit()`), acknowledges, and
replicates. Nothing that depends on a write is sent before that write has returned.
"""
