"""Test workers share the cores, and threads that wait for a core cost more than they save: one thread each."""

import torch

torch.set_num_threads(1)
