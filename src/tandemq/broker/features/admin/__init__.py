"""Topics, groups and settings, as operators change and read them."""
