"""Settings of brokers and name servers: typed, read from files, changed while a node runs."""
