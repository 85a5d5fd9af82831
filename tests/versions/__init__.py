"""Clusters, stores and clients of the last release together with those of this tree: `make versions`."""
