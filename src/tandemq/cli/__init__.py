"""The command line: a thin layer over the client, the server processes and the offline tools.

    main                 root command, errors and exit codes
    serve up demo        commands that run brokers, name servers, whole clusters
    doctor/              doctor: checks of a machine, of settings and of a cluster
    completion           script for the completion of shells
    admin/               topic, group, message, offset and cluster: administer a running cluster
    ha/                  ha: replication and roles of broker groups
    log/                 log: offline tools for a store directory
    spark/               spark: jobs that run on Spark
    bench                load generator for one broker
    support/             shared by commands: options, output as tables or JSON, client sessions

Exit codes: 0 done · 1 failed (the text has the reason) · 2 wrong usage or configuration · 3 a check found faults.
"""

from tandemq.cli.main import main

__all__ = ["main"]
