"""Runtime on the operating system: event loop, disk, clock, threads, ZooKeeper client. Decisions are in the core."""
