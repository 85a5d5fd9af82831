"""The kernel of a broker: the base on which its features are built.

    serving         what this broker may do in this turn
    role            who decides that, and what replication reports to it
    feature         what a feature adds to a broker, and the list of all features
    kernel          the services that features are built from
    puts            what stores messages, and what the broker itself stores; messages/ what their kinds mean
    moves           what the broker stores again, by the engine
    verification    what the verification of the log offers
    context         the settings in force, the output and the verdict of the turn
    connection      a client's connection
    mastership      whether state that was read from the log still holds

The kernel imports `state` and nothing else of the broker.
"""
