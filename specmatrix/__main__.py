"""The command `specmatrix`, also as `python -m specmatrix`: Ctrl-C may come before the command line is imported."""

import os
import sys

# The module `signal` without its enums, which would take a while.
from _signal import SIGINT, default_int_handler, getsignal, signal


def main() -> int:
    """Run the command line of this process and return its exit status."""
    if getsignal(SIGINT) is default_int_handler:
        signal(SIGINT, _leave)
    from specmatrix.cli import main as command

    return command()


def _leave(number: int, frame: object) -> None:
    # An exception would be lost in an import, or print a traceback when Python ends.
    try:
        os.write(2, b"specmatrix: interrupted\n")
    finally:
        os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
