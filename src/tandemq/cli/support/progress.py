"""Progress of long commands on standard error."""

import sys
import time
from collections.abc import Callable

import click

REPORT_EVERY_S = 0.5
LINE_EVERY_S = 10.0


class StatusLine:
    """One updated line on a terminal, a line every few seconds elsewhere."""

    def __init__(self, *, silent: bool) -> None:
        """`silent`: print nothing, as with --json."""
        self._silent = silent
        self._is_terminal = sys.stderr.isatty()
        self._last = time.monotonic()

    def show(self, text: Callable[[], str], *, is_last: bool = False) -> None:
        """Show a text, if it is time to, or the last one."""
        now = time.monotonic()
        if self._silent or (now - self._last < (REPORT_EVERY_S if self._is_terminal else LINE_EVERY_S) and not is_last):
            return
        self._last = now
        start, has_end = "\r" if self._is_terminal else "", is_last or not self._is_terminal
        click.echo(f"{start}{text()}", nl=has_end, err=True)


class ProgressLine:
    """Progress of a command over bytes of log."""

    def __init__(self, what: str, *, silent: bool, is_brief: bool = False) -> None:
        """`what`: first word of the lines. `is_brief`: nothing is printed elsewhere than on a terminal."""
        self._what = what
        self._line = StatusLine(silent=silent or (is_brief and not sys.stderr.isatty()))
        self._began = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        """Show the bytes done and the bytes in total."""

        def text() -> str:
            speed = done / 1e6 / max(time.monotonic() - self._began, 1e-9)
            return f"{self._what}: {100 * done // max(total, 1)} % of {total / 1e6:,.0f} MB, {speed:,.0f} MB/s"

        self._line.show(text, is_last=done >= total)
