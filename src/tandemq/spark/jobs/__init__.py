"""Jobs of the data pipeline, one module each."""
