"""`python -m specmatrix` is the command `specmatrix`."""

import sys

from specmatrix.cli import main

if __name__ == "__main__":
    sys.exit(main())
