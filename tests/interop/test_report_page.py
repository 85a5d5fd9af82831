"""The report of `tandemq spark report` in a real browser without a window."""

import shutil
import subprocess
from pathlib import Path

from tandemq.spark.report import report_page
from tests.spark.figures import MADE, figures, twins

BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")


def test_page_is_drawn_by_a_headless_browser(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(report_page("The log", figures(), twins(), made=MADE))
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    assert browser is not None, f"install one of {', '.join(BROWSERS)}"
    words = [browser, "--no-sandbox", "--disable-gpu", "--headless", "--window-size=1000,1600"]
    drawn = subprocess.run([*words, "--dump-dom", page.as_uri()], capture_output=True, text=True, check=True).stdout
    assert drawn.count("<polyline") == 7
    picture = tmp_path / "report.png"
    subprocess.run([*words, f"--screenshot={picture}", page.as_uri()], capture_output=True, check=True)
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert picture.stat().st_size > 20_000
