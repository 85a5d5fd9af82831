"""The simulated world: whole clusters in one thread, on a seeded network, disk and clock.

    world        clock, queue of what happens, dice, digest
    network      connections that cut, stall, split and lose
    disk         a disk that forgets, tears, rots, fills up
    process      machines and the processes that drive nodes
    plan, cluster             what a seed's cluster looks like; hosts and what operators do to them
    messages, deliveries      what is sent, and how what arrives is looked at
    talker, producer, consumer, garbage      clients of frames
    application, producing, consuming, witness      applications on the real client, and who watches them
    seat         a client's machine and process
    faults       what goes wrong
    shadow, logs, checks, verdict            what should be there, what is there, what must hold
    registry, groups, permissions, groupclients, groupfaults, groupchecks, groupverdict, groupsim
                 the same for groups with a registry
    history, simulation, runner   one seed, many seeds

The nodes are the very objects that run on sockets and files. Source: docs/internals/simulation.md.
"""
