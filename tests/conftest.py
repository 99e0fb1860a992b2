"""One torch thread: on a shared machine two are often slower, and results are for comparing."""

import torch

torch.set_num_threads(1)
