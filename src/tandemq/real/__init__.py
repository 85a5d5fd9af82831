"""The real world: one file per thing. Thin; whatever decides lives in the core."""
