"""Static topics: requests about logical queues, on top of the broker's ordinary queues."""
