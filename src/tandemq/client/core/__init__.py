"""What producers and consumers share: connections, routes, operations, availability of brokers."""
