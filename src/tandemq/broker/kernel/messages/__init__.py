"""Messages of special kinds: half messages, timed messages, and the reasons to refuse them."""
