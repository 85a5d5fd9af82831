"""The group member: one broker's decisions about its role."""
