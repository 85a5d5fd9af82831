"""`tandemq ha`: replication, roles and configuration of broker groups."""
