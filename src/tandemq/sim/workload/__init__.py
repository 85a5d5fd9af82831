"""What clients and operators do in a simulated cluster."""
