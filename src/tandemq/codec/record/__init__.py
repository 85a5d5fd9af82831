"""Records of the commit log, one by one and in runs, and entries of consume queues."""
