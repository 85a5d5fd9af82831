"""A visit, templates, translations."""
