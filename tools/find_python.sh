#!/bin/sh
# Print the first Python that can make our environment: 3.11 or newer, with venv and pip inside.
# Candidates are run, not only looked up: a version manager's shim may exist and yet refuse to start.
# PYTHON=/path/to/python comes before all others.

for candidate in "${PYTHON:-}" python3.13 python3.12 python3.11 python3 python; do
    [ -n "$candidate" ] || continue
    found=$("$candidate" -c '
import sys, venv, ensurepip
if sys.version_info < (3, 11) or sys.platform != "linux":
    sys.exit(1)
print(sys.executable)
' 2>/dev/null) && [ -n "$found" ] && {
        echo "$found"
        exit 0
    }
done

echo "TandemQ needs Python 3.11 or newer on Linux, with the venv module (Debian and Ubuntu: the package python3-venv)." >&2
echo "None was found on the PATH; name one with: make setup PYTHON=/path/to/python3.11" >&2
exit 1
