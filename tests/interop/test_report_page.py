"""The report of `tandemq spark report` in a real browser without a window."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tandemq.spark.jobs.report import report_page
from tests.spark.figures import MADE, figures, replicas
from tests.spark.logs import BORN_MS, LogWriter
from tests.spark.short import SHORT
from tests.spec import spec

BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")


def browser() -> list[str]:
    """The command of one that is installed."""
    found = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    assert found is not None, f"install one of {', '.join(BROWSERS)}"
    return [found, "--no-sandbox", "--disable-gpu", "--headless", "--window-size=1000,1600"]


def drawn(page: Path) -> str:
    """The page as it stands in the browser."""
    words = [*browser(), "--dump-dom", page.as_uri()]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def test_page_is_drawn_by_a_headless_browser(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(report_page("The log", figures(), replicas(), made=MADE))
    assert drawn(page).count("<polyline") == 7
    picture = tmp_path / "report.png"
    subprocess.run([*browser(), f"--screenshot={picture}", page.as_uri()], capture_output=True, check=True)
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert picture.stat().st_size > 20_000


@spec("P14")
def test_page_of_the_command_shows_the_figures_of_its_store(tmp_path: Path) -> None:
    writer, replica = LogWriter(tmp_path / "broker-a"), LogWriter(tmp_path / "replica")
    for one in (writer, replica):
        one.write_many(400)
    harmed = replica.made[123].log_offset
    replica.flip(harmed + 92)
    config = writer.store / "config"
    config.mkdir()
    offsets = {"T0@billing": {str(queue): 20 for queue in (0, 2)}}
    (config / "consumerOffset.json").write_text(json.dumps({"offsetTable": offsets}))
    page = tmp_path / "report.html"
    settings = [word for name, value in SHORT.items() for word in ("--conf", f"{name}={value}")]
    words = [
        sys.executable,
        "-m",
        "tandemq",
        "spark",
        "report",
        str(writer.store),
        str(page),
        "--replica",
        str(replica.store),
    ]
    subprocess.run([*words, "--master", "local[2]", *settings], check=True)
    shown = drawn(page)
    size = sum(made.size for made in writer.made)
    assert f"400 messages, {size:,} bytes of records, 2 topics" in shown
    assert f"diverges at {harmed:,}" in shown
    assert "records: 1 corrupt" in shown
    assert shown.count("<polyline") == 7
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", shown)]
    for topic in ("T0", "T1"):
        of_it = [made for made in writer.made if made.topic == topic]
        (row,) = [row for row in rows if row[:1] == [topic]]
        assert row[1:4] == ["2", "200", f"{sum(made.size for made in of_it):,}"]
    (lag,) = [row for row in rows if row[:1] == ["billing"]]
    assert lag[1:5] == ["T0", "40", "200", "160"]
    told = re.search(r'id="figures">(.*?)</script>', shown)
    assert told is not None
    minutes = json.loads(told[1])["minutes"]
    assert sum(row["messages"] for row in minutes) == 400
    assert {row["minute"] for row in minutes} == {BORN_MS // 60_000 * 60_000}
