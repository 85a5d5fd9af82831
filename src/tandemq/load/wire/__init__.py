"""What the load generator says and hears: sockets, prepared frames, answers counted."""
