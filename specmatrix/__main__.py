"""Entry point of `specmatrix` and `python -m specmatrix`; handles Ctrl-C while the command line is being imported."""

import os
import sys

# The C module behind `signal`, without its enums, which are slow to create.
from _signal import SIGINT, default_int_handler, getsignal, signal


def main() -> int:
    """Run the command line of this process and return its exit status."""
    if getsignal(SIGINT) is default_int_handler:
        signal(SIGINT, _leave)
    from specmatrix.cli import main as command

    return command()


def _leave(number: int, frame: object) -> None:
    # An exception could be swallowed by an import, or print a traceback at interpreter exit.
    try:
        os.write(2, b"specmatrix: interrupted\n")
    finally:
        os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
