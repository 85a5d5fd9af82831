"""Messages that consumers send back, and dead letters."""
