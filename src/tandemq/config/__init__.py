"""Settings: the typed tables of a broker and a name server, read from files, changed while a node runs."""
