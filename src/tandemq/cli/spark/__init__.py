"""`tandemq spark`: the jobs of the data pipeline."""
