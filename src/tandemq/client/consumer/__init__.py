"""Push and pull consumers without input and output: rebalancing, deliveries, send-backs."""
