"""Registry client for etcd: executes operations, returns responses and session events.

    loop ──ask──► session: one thread ──HTTP/JSON──► an etcd member     `gateway`, `messages`
    loop ◄─take_events── deque ◄─ responses, session events, Changed ◄─ one thread per watch stream

    here                                       etcd
    node /a/b                                  key PREFIX/a/b
    version n                                  version n + 1 of the key
    ephemeral node                             key with the session's lease
    session, its id and timeout                lease, its ID and TTL (whole seconds, at least etcd's minimum)
    the session exists                         key PREFIX/tandemq-sessions/ID, which has the lease
    compare-and-set                            a transaction that compares versions                  `transactions`
    one-shot watches                           a table, and one watch on their common directory      `watches`

A connection that takes over a session writes the session's key. Each write compares the version of that key, so a write
of an earlier connection that is delayed in etcd fails from then on, as the interface demands.

Proof that the session is alive. The keep-alive of a lease is answered by one server, which may be a leader that was
paused and does not know yet that it was replaced. So `PINGS_PER_TIMEOUT` times per TTL a ping sends a keep-alive and
then a linearizable read of the session's key, to the same member. The session is confirmed if the key is there, and if
that member reports the same Raft term as in the read before. Then the leader of that term renewed the lease, and a
majority still followed it after the renewal; a later leader begins with the full TTL. The leases of a group's members
are counted from the moment before the keep-alive was sent, so they are over before etcd may delete the lease.

Owner: the shell of one node. Needs etcd 3.4 or newer with its gRPC gateway, which is on by default.
Source: docs/internals/failover.md, "etcd"; decision 0008; etcd's API reference and its guarantees.
"""
