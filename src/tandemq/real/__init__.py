"""Runtime on the operating system: event loop, disk, clock, threads, ZooKeeper, etcd. Decisions are in the core."""
