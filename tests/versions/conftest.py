"""The last release, installed once."""

from __future__ import annotations

import pytest

from tests.versions.world import Version, released
from tools.released import Installed, choose, install


@pytest.fixture(scope="session")
def release() -> Installed:
    """The last release of releases.toml, built from its commit and installed below build/releases."""
    return install(choose(None))


@pytest.fixture(scope="session")
def old(release: Installed) -> Version:
    """What its servers run."""
    return released(release.python)
