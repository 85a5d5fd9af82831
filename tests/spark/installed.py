"""Other versions of PySpark, installed into build/ once."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def installed(version: str) -> Path:
    """Return a directory with the newest PySpark of a version; all other packages come from the environment."""
    place = ROOT / "build" / f"pyspark-{version}"
    ready = place / ".ready"
    if not ready.exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--no-deps", "--no-build-isolation"]
        subprocess.run([*command, "--target", str(place), f"pyspark=={version}.*"], check=True)
        ready.touch()
    return place
