"""POP consumption: pops, acknowledgements, and messages that come back because nobody acknowledged them."""
