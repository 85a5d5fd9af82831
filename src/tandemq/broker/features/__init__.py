"""The features of a broker that are built from its kernel alone: a folder each, and a line in `built.FEATURES`."""
