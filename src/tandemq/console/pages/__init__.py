"""One file per family of pages."""
