"""docs/guides/sizing.md: the command behind its figures measures a broker."""

import re
from pathlib import Path

from bench.sizing import measure
from tests.pages import Page


def test_page_names_the_program_whose_rows_show_what_was_added(tmp_path: Path) -> None:
    [command] = Page("docs/guides/sizing.md").blocks("Measured")
    assert re.fullmatch(r"(\.venv/bin/)?python -m bench\.sizing\n", command)
    rest, few, all_topics, messages, queues, connections = measure(tmp_path, topics=100, connections=20, messages=2_000)
    assert (few.step, all_topics.step) == ("10 topics of 4 queues", "100 topics of 4 queues")
    assert rest.memory_bytes > 10_000_000
    assert rest.name_server_bytes > 10_000_000
    assert messages.disk_bytes - all_topics.disk_bytes > 2_000 * 1_000
    assert queues.disk_bytes > messages.disk_bytes
    assert connections.files > queues.files + 10  # those of the measurement itself come and go
