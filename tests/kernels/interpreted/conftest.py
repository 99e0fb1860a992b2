"""Tests of kernels in Triton's interpreter, in a process that `test_interpreted` starts."""

import os

import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    collect_ignore_glob = ["*"]  # without it, kernels are compiled for a GPU that is not there

torch.set_num_threads(1)
