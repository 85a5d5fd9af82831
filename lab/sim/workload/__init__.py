"""Clients and operators of a simulated cluster."""
