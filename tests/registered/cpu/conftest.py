"""The CPU tier: a GPU of this machine is no part of it, and Triton's kernels run in its interpreter.

Both are read when torch and triton are first imported.
"""

import os

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["TRITON_INTERPRET"] = "1"
