"""One broker as a plain object.

    node          links in, commands by code, one commit per turn, answers out
    send, pull    the two hot paths · longpoll: pulls that wait
    topics, groups, offsets, clients   what is configured, how far each group is, who is connected
    delay, retry, query, admin         scheduled and returned messages; look-ups; operators' requests
    deadletters                        warnings of messages that no consumer could process
    registration, peers                telling name servers; our own requests to others
    replicate, masterside, slaveside   replication sessions tied to links and store

A turn: events, then what arrived, then what is due; then `store.commit()`; then acknowledgements; then replication.
Nothing that depends on a write leaves before that write returned.
"""
