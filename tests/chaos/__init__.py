"""The checker of `make chaos`."""
