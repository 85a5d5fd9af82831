"""Sends: messages checked, stored and answered; send-backs and delayed messages."""
