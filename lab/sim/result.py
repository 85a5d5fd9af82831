"""Result of one seed."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Result:
    """Result of one seed. `rule` and `text` describe the violation, if there is one."""

    seed: int
    digest: str = ""
    rule: str = ""
    text: str = ""
    virtual_s: float = 0.0
    sends: int = 0
    given: int = 0
    turns: int = 0
    duplicates: int = 0
    levels: list[str] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)
    requests: dict[int, int] = field(default_factory=dict)
    statuses: dict[int, int] = field(default_factory=dict)
