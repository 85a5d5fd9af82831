"""Exit codes of commands (docs/reference/commands.md); 0 is success."""

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_FAULTS = 3
"""The command has done its work and found faults, such as damage or lost messages."""
EXIT_INTERRUPTED = 130
