"""A saved network, for the tests of saving."""

import pytest

from tests.network.saved import captured


@pytest.fixture
def folder(tmp_path):
    captured().save_pretrained(tmp_path / "net")
    return tmp_path / "net"
