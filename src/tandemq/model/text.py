"""Texts from peers, shortened for log lines and remarks."""

CHARACTERS_MAX = 200


def brief(value: object, characters: int = CHARACTERS_MAX) -> str:
    """Return a value as text, cut after `characters` characters, with the number of omitted ones."""
    text = str(value)
    return text if len(text) <= characters else f"{text[:characters]}… ({len(text) - characters} more characters)"
