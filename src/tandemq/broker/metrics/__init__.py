"""Metrics of a broker: each file is a source (`telemetry.families`) of the families of one part."""
