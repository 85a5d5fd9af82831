"""A session with an installed TandemQ, run inside its root: servers start, a message goes through, SIGTERM ends them.

    python3 session.py USER_ID GROUP_ID CONFIGURATION_DIRECTORY DATA_DIRECTORY MESSAGES

MESSAGES is how many it receives: its own, and those that earlier sessions have stored in the same directory.

It needs the standard library only, as it runs with the Python of the root, in a network namespace of its own, as root
at first. It prints a JSON object with what it saw, and exits with 1 if a step did not succeed.
"""

import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

WAIT_S = 240.0
COMMAND = "/usr/bin/tandemq"
SIOCSIFFLAGS, IFF_UP = 0x8914, 1


def bring_up_loopback() -> None:
    """Bring up the loopback interface of a new network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


def output_of(*words: str) -> str:
    """Run a client command that has to succeed."""
    done = subprocess.run([COMMAND, *words], capture_output=True, text=True, timeout=WAIT_S, check=False)
    if done.returncode != 0:
        sys.exit(f"tandemq {' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def wait_healthy(count: int) -> list[str]:
    """Wait until so many servers are ready; return their URLs."""
    deadline, pause = time.monotonic() + WAIT_S, threading.Event()
    while True:
        done = subprocess.run([COMMAND, "health", "--json"], capture_output=True, text=True, check=False)
        rows = json.loads(done.stdout or "[]")
        if done.returncode == 0 and len(rows) == count:
            return [row["url"] for row in rows]
        if time.monotonic() > deadline:
            sys.exit(f"{count} servers are not ready: {rows} {done.stderr}")
        pause.wait(0.2)


def main() -> None:
    user, group, configuration, data = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    bring_up_loopback()
    os.setgroups([])
    os.setgid(group)
    os.setuid(user)
    os.environ["HOME"] = data
    os.chdir(data)
    database = f"sqlite:///{data}/console.db"
    servers = {
        "namesrv": ["namesrv", "-c", f"{configuration}/namesrv.conf"],
        "broker": ["broker", "-c", f"{configuration}/broker-a.conf"],
        "proxy": ["proxy", "-c", f"{configuration}/proxy.conf"],
        "kafka": ["kafka", "--metrics-port", "5560"],
        "console": ["console", "--database", database],
    }
    running = {name: subprocess.Popen([COMMAND, *words]) for name, words in servers.items()}
    try:
        healthy = wait_healthy(len(servers))
        body = f"hello {time.time_ns()}"
        sent = json.loads(output_of("message", "send", "Installed", body, "--json"))
        tail = output_of("message", "tail", "Installed", "--from", "earliest", "--json", "--count", sys.argv[5])
        bodies = {json.loads(line)["body"] for line in tail.splitlines()}
        for name in ("console", "kafka", "proxy", "broker", "namesrv"):
            running[name].send_signal(signal.SIGTERM)
        ended = {name: process.wait(WAIT_S) for name, process in running.items()}
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    facts = {
        "version": output_of("--version").strip(),
        "healthy": healthy,
        "sent": sent,
        "bodies": sorted(bodies),
        "ended": ended,
        "rootIsReadOnly": bool(os.statvfs("/usr").f_flag & os.ST_RDONLY),
        "dataIsWritable": os.access(data, os.W_OK),
        "user": os.getuid(),
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
