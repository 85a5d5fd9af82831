"""Entry point of `python -m tandemq`: the command line."""

from tandemq.cli import main

if __name__ == "__main__":
    main()
