"""`tandemq sim --forever` as a process: what it tells when it is interrupted."""

import signal
import subprocess
import sys
import threading


def test_seeds_without_end_tell_their_number_and_end_with_a_summary_when_interrupted() -> None:
    command = [sys.executable, "-m", "tandemq", "sim", "--forever", "--jobs", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        kill = threading.Timer(50, running.kill)
        kill.start()
        assert running.stderr is not None
        assert running.stderr.readline() == "1 seeds\n"
        running.send_signal(signal.SIGINT)
        shown, told = running.communicate()
        kill.cancel()
    assert (running.returncode, told) == (0, "")
    assert " seeds, " in shown
    assert "nothing was violated" in shown
