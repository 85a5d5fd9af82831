"""`tandemq ha`: replication and roles of broker groups."""
