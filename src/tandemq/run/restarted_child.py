"""A server of this package as a child process that is started again when it ends by itself.

    spawn ─► wait_ready ─► ends by itself ─► a pause ─► spawn ─► …        until stop
    parent is killed ─► the standard input of the child closes, and it stops
                        `outlives_parent`: it goes on, and the next parent calls `adopt`

The settings pass in a file that only the user of the process can read, since they may contain passwords; it is removed
when the child has read it. The child writes its log where its parent does.
"""

import logging
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from tempfile import mkstemp
from typing import IO, Any

from tandemq.errors import ConfigError, LocalError
from tandemq.run.adopted_process import AdoptedProcess
from tandemq.run.children import EXIT_USAGE, Child

log = logging.getLogger(__name__)
PAUSE_S = 1.0
"""Pause before a child that ended soon after its start is started again, doubled each time; others are at once."""
PAUSE_S_MAX = 30.0
SOON_S = 10.0


class RestartPause:
    """The pause before a process that has ended is started again."""

    def __init__(self) -> None:
        """Begin with a process that has not ended yet."""
        self._pause_s = 0.0

    def after(self, ran_s: float) -> float:
        """Return the pause, in seconds, for a process that was ready for `ran_s`."""
        self._pause_s = min(max(PAUSE_S, self._pause_s * 2), PAUSE_S_MAX) if ran_s < SOON_S else 0.0
        return self._pause_s


class _Process(Child):
    """The process."""

    def __init__(self, title: str, arguments: Callable[[], list[str]]) -> None:
        super().__init__(title, Path(), arguments)
        self.of_environment: Mapping[str, str] = {}

    def variables(self) -> Mapping[str, str]:
        """See `Child`."""
        return self.of_environment

    def open_log(self) -> AbstractContextManager[IO[bytes] | None]:
        """Have it inherit the standard error stream."""
        return nullcontext(None)

    def did_not_start(self, process: subprocess.Popen[bytes]) -> LocalError:
        """Return the error if it has not become ready."""
        self.kill()
        kind = ConfigError if process.returncode == EXIT_USAGE else LocalError
        return kind(f"{self.name} did not start (exit code {process.returncode}); its log says why")


class RestartedChild:
    """The child: `spawn`, `wait_ready`, `stop`, in any case."""

    def __init__(
        self,
        title: str,
        words: Sequence[str],
        settings: Mapping[str, str],
        *,
        start_s: float = Child.start_seconds,
        stop_s: float = Child.stop_seconds,
    ) -> None:
        """Start nothing yet.

        Args:
            title: the subject of log lines and errors.
            words: command and options of `tandemq`, to which `-c FILE` is added.
            settings: its settings, by their keys.
            start_s: how long it may take until it is ready.
            stop_s: how long it may take to stop; then it is killed.
        """
        self.title = title
        self.settings = dict(settings)
        self.directory: Path | None = None
        """Private directory of the file of settings; None: that of temporary files."""
        self.restarts = 0
        """How often it was started again."""
        self.problem = "is starting"
        """Why it does not run, as a verb; "" while it does."""
        self.is_clean = True
        """Whether it exited with code 0 when it was stopped."""
        self._file = Path()
        self._words = list(words)
        self._child = _Process(title, lambda: [*self._words, "-c", str(self._file)])
        self._child.start_seconds, self._child.stop_seconds = start_s, stop_s
        self._is_stopping = threading.Event()
        self._lock = threading.Lock()
        """Held while the process is started, so that `stop` misses none."""
        self._watcher = threading.Thread(target=self._watch, name=title, daemon=True)

    @property
    def address(self) -> str:
        """Address for clients on this machine, "ip:port"."""
        return self._child.address

    @property
    def startup(self) -> Mapping[str, Any]:
        """Its startup report; empty before it is ready."""
        return self._child.startup

    @property
    def pid(self) -> int:
        """Its process id; 0 if it does not run."""
        return self._child.pid

    @property
    def is_stopping(self) -> bool:
        """Whether it was stopped."""
        return self._is_stopping.is_set()

    def outlive_parent(self) -> None:
        """Have the process go on when this one is killed."""
        self._child.outlives_parent = True

    def set_variables(self, variables: Mapping[str, str]) -> None:
        """Set variables of its environment besides those of this process."""
        self._child.of_environment = dict(variables)

    def was_spawned(self) -> None:
        """Note that the process has been started; to be overridden."""

    def became_ready(self) -> None:
        """Note that the process is ready; to be overridden."""

    def adopt(self, process: AdoptedProcess, startup: Mapping[str, Any]) -> None:
        """Watch a process that another parent has started, and that was ready: instead of `spawn` and `wait_ready`."""
        self._child.adopt(process, startup)
        self.became_ready()
        self.problem = ""
        self._watcher.start()

    def spawn(self) -> None:
        """Start the process without waiting, unless `stop` was called."""
        with self._lock:
            if not self._is_stopping.is_set():
                handle, name = mkstemp(prefix="tandemq-", suffix=".conf", dir=self.directory)
                self._file = Path(name)
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    file.write(settings_text(self.settings))
                self._child.spawn()
                self.was_spawned()

    def wait_ready(self) -> None:
        """Wait until the process is ready; it is watched from then on.

        Raises:
            ConfigError, LocalError: it cannot start; it has logged why.
        """
        self._wait_ready()
        self._watcher.start()

    def _wait_ready(self) -> None:
        try:
            self._child.wait_ready()
        finally:
            self._file.unlink(missing_ok=True)
        self.became_ready()
        self.problem = ""

    def _watch(self) -> None:
        pause = RestartPause()
        while True:
            began_s = time.monotonic()
            self._child.wait()
            pause_s = pause.after(time.monotonic() - began_s)
            if not self._is_stopping.is_set():
                self.problem = f"ended ({self._child.ending})" if self._child.ending else "did not start"
                log.error("%s %s; it is started again in %g s", self.title, self.problem, pause_s)
            if self._is_stopping.wait(pause_s):
                break
            self.restarts += 1
            try:
                self.spawn()
                if self._is_stopping.is_set():
                    break
                self._wait_ready()
            except LocalError as error:
                log.error("%s", error)
            except OSError as error:  # no space for the file of settings, or no process
                log.error("%s cannot be started: %s", self.title, error)
            else:
                log.info("%s runs again at %s", self.title, self.address)
        self.is_clean = self._child.stop()

    def begin_stop(self) -> None:
        """Have the process stop, without waiting; it is not started again. Callable many times."""
        with self._lock:
            self._is_stopping.set()
            self._child.signal_stop()

    def stop(self) -> None:
        """Stop the process: its clients go elsewhere, and calls in progress are answered. Return when it has ended."""
        self.begin_stop()
        if self._watcher.is_alive():
            self._watcher.join(self._child.stop_seconds)
            if self._watcher.is_alive():
                self._child.signal_kill()
            self._watcher.join()
        else:
            self.is_clean = self._child.stop() and self.is_clean
            if self._file.name:
                self._file.unlink(missing_ok=True)


def settings_text(settings: Mapping[str, str]) -> str:
    """Return settings as a properties file."""
    escaped = {key: value.replace("\\", "\\\\") for key, value in settings.items()}
    return "".join(f"{key} = {value}\n" for key, value in escaped.items())
