"""The name server: which brokers are alive, which topics they have, and their addresses. Only the key-value
configuration and the hosted registry are on disk; brokers register everything else periodically with every name server.

    broker ──REGISTER_BROKER──► registration ──► routes ──GET_ROUTEINFO_BY_TOPIC──► client
                                                   ▲
    closed connections, silence ───────────────────┘      kv_config ◄── operator

    node               builds the parts and says in which order they act in a turn
    connections        open connections: partial frames, idle times, response budgets
    processor          request handlers, by request code
    registration       decoding of registrations and header fields
    routes             the route table: brokers + topics, encoded routes
    brokers, topics    its two halves: groups and liveness; queues and permissions
    broker_data        the values in these tables
    kv_config          the key-value configuration (kvConfig.json)
    registry_service   the embedded registry; registry_journal: its files
    running_config     the settings in force

Name servers do not communicate. A broker registers with all of them; a client asks any.
"""

from tandemq.nameserver.node import NameServer

__all__ = ["NameServer"]
