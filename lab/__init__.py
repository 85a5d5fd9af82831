"""Programs that test the broker and are not in the wheel: `lab.sim`, the simulation."""
