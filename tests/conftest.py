"""How tests are shared out among workers."""

from typing import Any

import pytest
import torch
from xdist.scheduler import LoadFileScheduling

torch.set_num_threads(1)  # workers share the cores, and threads that wait for a core cost more than they save

ALONE = "test_documents.py", "test_examples.py"
"""Files of a few long tests that share nothing."""


class Scheduling(LoadFileScheduling):
    """Tests of a file share what they build, so one worker runs them; single ones fill the gaps in the end."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return nodeid if file.endswith(ALONE) else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    return Scheduling(config, log)
