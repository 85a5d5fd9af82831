"""Results and reports of load runs."""
