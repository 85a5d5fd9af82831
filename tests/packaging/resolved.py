"""`tandemq` in a process whose names are those of a file: `python -m tests.packaging.resolved HOSTS WORDS…`.

The file has lines as /etc/hosts, and may change at any time; names that it lacks do not exist.
"""

import runpy
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tandemq.real.network.addresses import is_ip


def resolver(hosts: Path) -> Callable[..., Any]:
    """Return a function in place of `socket.getaddrinfo`."""
    original = socket.getaddrinfo

    def getaddrinfo(host: str, *words: Any, **named: Any) -> Any:
        if not is_ip(host):
            known = {name: ip for ip, name in map(str.split, hosts.read_text(encoding="ascii").splitlines())}
            if host not in known:
                raise socket.gaierror(socket.EAI_NONAME, f"Name or service not known: {host}")
            host = known[host]
        return original(host, *words, **named)

    return getaddrinfo


if __name__ == "__main__":
    socket.getaddrinfo = resolver(Path(sys.argv[1]))
    sys.argv = ["tandemq", *sys.argv[2:]]
    runpy.run_module("tandemq", run_name="__main__", alter_sys=True)
