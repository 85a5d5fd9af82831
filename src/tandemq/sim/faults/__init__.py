"""What goes wrong in a run, drawn from its seed."""
