"""`tandemq log`: offline tools for a store directory."""
