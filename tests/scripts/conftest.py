"""`pytest tests/scripts --rewrite` writes the transcripts anew; the diff is then read by somebody."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write the transcripts of tests/scripts anew")
