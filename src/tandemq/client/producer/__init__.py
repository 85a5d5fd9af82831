"""The producer without input and output: choice of queues and brokers, encoding, retries."""
