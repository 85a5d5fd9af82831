"""Programs that test the broker and are not in the wheel.

samples    small configurations
sim/       the simulation
"""
