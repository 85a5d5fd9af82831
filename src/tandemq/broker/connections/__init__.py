"""Client connections and their limits; requests of the broker to peers and to clients."""
