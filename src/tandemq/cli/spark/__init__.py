"""`tandemq spark`: jobs of the data pipeline."""
