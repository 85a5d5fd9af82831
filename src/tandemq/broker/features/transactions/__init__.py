"""Transactional messages: half messages, their commit or rollback, and checks of those that stay open."""
