"""A world in one process: disks, links, clocks and machines that fail by seed, around the core that runs outside."""
