"""What must hold, checked while a run goes on and at its end."""
