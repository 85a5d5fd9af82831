"""The JSON interface below /api/v1."""
