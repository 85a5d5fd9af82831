"""Safeties switched off one at a time: a checker that never complained proves nothing.

    patch          attributes replaced for a while
    cluster        mutations that seeds with fixed roles notice
    groups         mutations that seeds with a registry notice
    coordination   mutations that the schedules of tests/unit/coordination notice

`python -m tests.mutations list` names those of the simulation; `python -m tests.mutations NAME` runs seeds with one.
"""
