"""The CPU tier: a GPU of this machine is no part of it."""

import os

os.environ["CUDA_VISIBLE_DEVICES"] = ""
