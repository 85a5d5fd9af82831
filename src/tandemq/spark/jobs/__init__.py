"""The pipeline's jobs, one module each."""
