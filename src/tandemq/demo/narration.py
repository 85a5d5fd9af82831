"""Output of the demo: colours and a progress bar on a terminal, plain lines with times everywhere else."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

PLAIN_EVERY_S = 5.0
PLAIN_WIDTH = 120


class Narration:
    """Prints steps, a progress bar and a table."""

    def __init__(self, *, to_error: bool = False) -> None:
        """`to_error`: print to standard error, because standard output is for the result."""
        self._console = Console(stderr=to_error, highlight=False)
        if not self._console.is_terminal:
            self._console = Console(stderr=to_error, highlight=False, width=PLAIN_WIDTH, soft_wrap=True)
        self._began = time.monotonic()
        self._progress: Progress | None = None
        self._sent = self._delivered = TaskID(0)
        self._total = 0
        self._plain_at = 0.0

    @property
    def seconds(self) -> float:
        """Return the seconds since the beginning."""
        return time.monotonic() - self._began

    def title(self, text: str) -> None:
        """Print the title."""
        self._console.print(f"[bold]{text}[/bold]")

    def step(self, text: str) -> None:
        """Print something that happened as planned."""
        self._line("[green]·[/green]", text)

    def injected(self, text: str) -> None:
        """Print a fault that the demo injected."""
        self._line("[bold red]✗[/bold red]", f"[bold]{text}[/bold]")

    def result(self, text: str, *, holds: bool) -> None:
        """Print the result of a check."""
        self._line("[green]✓[/green]" if holds else "[bold red]✗[/bold red]", text)

    def _line(self, mark: str, text: str) -> None:
        self._console.print(f"[dim]{self.seconds:6.1f} s[/dim] {mark} {text}")

    def table(self, table: Table) -> None:
        """Print a table."""
        self._console.print(table)

    # The progress bar.

    def begin_load(self, total: int) -> None:
        """Show progress from here to `end_load`."""
        self._total = total
        if self._console.is_terminal:
            self._progress = Progress(
                TextColumn("{task.description:>12}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}"),
                TimeElapsedColumn(),
                console=self._console,
                transient=True,
            )
            self._sent = self._progress.add_task("acknowledged", total=total, note="")
            self._delivered = self._progress.add_task("delivered", total=total, note="")
            self._progress.start()

    def load(self, acknowledged: int, delivered: int, note: str) -> None:
        """Update the progress; cheap enough to call often."""
        if self._progress is not None:
            self._progress.update(self._sent, completed=acknowledged, note=note)
            self._progress.update(self._delivered, completed=delivered)
        elif time.monotonic() >= self._plain_at:
            self._plain_at = time.monotonic() + PLAIN_EVERY_S
            if acknowledged:
                self.step(
                    f"acknowledged {acknowledged:,} of {self._total:,}, delivered {delivered:,}{note and ', '}{note}"
                )

    def end_load(self) -> None:
        """Stop showing progress. Harmless a second time."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end_load()
