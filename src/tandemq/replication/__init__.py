"""Replication: state machines that copy the log from master to slave. They read the log through `LogView`.

master          session of one slave on the master      slave          session on the slave
authentication  proofs of the replication secret        record_stream  received bytes, split into verified records
acknowledged    offset that enough replicas have        waiters        responses that wait for flush and replicas
"""
