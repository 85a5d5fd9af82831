"""Parts shared by producers and consumers: connections, routes, broker availability, operations, timers."""
