"""Simulation of whole clusters in one thread, on a seeded network, disk and clock.

    world/              clock, event queue, network, disks, machines and processes, the cluster of a seed
    workload/           producers, consumers and administrators: raw clients, and applications on the real client
    faults/             faults drawn from the seed
    checkers/           expected state, and the checks during a run and at its end
    simulation          one seed of groups with fixed roles
    group_simulation    one seed of groups with a registry
    runner              many seeds
    __main__            the command `python -m lab.sim`

The nodes are the same objects that run on sockets and files. Source: docs/internals/simulation.md.
"""
