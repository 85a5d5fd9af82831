"""`tandemq doctor`: checks of this machine, of a broker's settings, and of a running cluster.

    findings           what a check finds: level, place, text, what to do
    machine_facts      facts of this machine, read from /proc and the C library
    machine_checks     limits, memory, clock, Python, engine
    store_checks       the directory of a store: space, inodes, file system
    settings_checks    a broker's settings: paths, ports, secrets, advertised addresses
    cluster_checks     name servers and brokers: health, addresses, clocks, versions, secrets
    commands           the command

Checks are functions of facts, so that tests give them any machine and any cluster.
"""
