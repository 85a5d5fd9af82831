"""The release gate: every kind of fault for a night, and a page that says what came of it.

    parts     what runs: simulation, real processes, clients of others, versions, planted faults, times
    pieces    what one run of a part found, a line of JSON
    page      docs/internals/release-gate.md and the table in the README, from all pieces

Every part is a command of its own in a process of its own; the gate reads what it wrote.
"""
