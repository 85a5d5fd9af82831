"""The name server: which brokers live, which topics they have, and where. Nothing of it survives a restart but the
key-value configuration; brokers tell every name server all they have, again and again.

    broker ──REGISTER_BROKER──► registration ──► routes ──GET_ROUTEINFO──► client
                                                  ▲
    closed links, silence ────────────────────────┘          kv ◄── operator

    registration   the body of a registration, in its three dialects, to words
    routes         the table: who is registered, which topics, and the encoded answers
    kv             the key-value configuration, the only thing on disk
    node           one name server as a plain object: bytes in, bytes out

Several name servers do not know of each other. A broker registers with all of them; a client asks any.
"""

from tandemq.nameserver.node import NameServer

__all__ = ["NameServer"]
