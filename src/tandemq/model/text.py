"""Text that somebody else gave, bounded for a log line or a remark."""

CHARACTERS_MAX = 200


def brief(value: object, characters: int = CHARACTERS_MAX) -> str:
    """A value as text of at most `characters`, and how many more there were."""
    text = str(value)
    return text if len(text) <= characters else f"{text[:characters]}… ({len(text) - characters} more characters)"
