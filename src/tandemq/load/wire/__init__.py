"""Wire protocol of the load generator: sockets, prepared frames, counted responses."""
