"""A saved network, for the tests of saving."""

import pytest

from tests.network.saved import network


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    net = network()
    net.save_pretrained(tmp_path_factory.mktemp("made"))
    return net


@pytest.fixture
def folder(tmp_path, made):
    made.save_pretrained(tmp_path / "net")
    return tmp_path / "net"
