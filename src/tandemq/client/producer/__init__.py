"""The producer as a machine: queues selected, messages encoded, sends retried."""
