"""What a message of a special kind is: half messages, timed messages, and why one is refused."""
