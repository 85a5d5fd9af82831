"""What Java RocketMQ wrote, kept as it was: see the README beside this file."""

import tarfile
from pathlib import Path

GOLDEN = Path(__file__).parent


def unpack(name: str, into: Path) -> None:
    """Unpack the archive `name`.tar.gz there. Python knows filters since 3.11.4, and warns of none since 3.12."""
    with tarfile.open(GOLDEN / f"{name}.tar.gz") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(into)  # noqa: S202  # our own archives
