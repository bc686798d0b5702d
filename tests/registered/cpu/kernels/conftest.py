"""Triton's kernels run in its interpreter here, which must be said before triton is first imported."""

import os

from kernels.backend import INTERPRETER

os.environ[INTERPRETER] = "1"
