"""The simulated world: whole clusters in one thread, on a seeded network, disk and clock.

    world        clock, queue of what happens, dice, digest
    network      connections that cut, stall, split and lose
    disk         a disk that forgets, tears, rots, fills up
    process      machines and the processes that drive nodes
    plan, cluster             what a seed's cluster looks like; hosts and what operators do to them
    talker, producer, consumer, garbage      who speaks to it
    faults       what goes wrong
    shadow, logs, checks, verdict            what should be there, what is there, what must hold
    simulation, runner, mutations            one seed, many seeds, safeties switched off

The nodes are the very objects that run on sockets and files. Source: docs/simulation.md.
"""
