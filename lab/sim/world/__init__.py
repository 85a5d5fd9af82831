"""The simulated world: clock, network, disks, machines and the processes on them."""
