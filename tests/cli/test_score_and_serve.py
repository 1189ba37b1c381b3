"""The commands for predictors at work."""

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from tests.deployment.conftest import write_classifier

arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")


def test_score(varprop, tmp_path):
    model = write_classifier(tmp_path / "model.onnx")
    rows = {"id": ["a", "b", "c"], "input": [[1.0, 2, 3, 4], [0.0, 0, 0, 0], [1.0]]}
    parquet.write_table(arrow.table(rows), tmp_path / "data.parquet")
    found = varprop("score", model, tmp_path / "data.parquet", tmp_path / "out", "--key", "id", "--device", "cpu")
    assert found.code == 0, found.err
    assert "3 rows, 1 of them unreadable" in found.out
    assert parquet.read_table(tmp_path / "out")["id"].to_pylist() == ["a", "b", "c"]


def test_score_refuses(refused, tmp_path):
    model = write_classifier(tmp_path / "model.onnx")
    assert "there are no data at" in refused("score", model, tmp_path / "none", tmp_path / "out")
    parquet.write_table(arrow.table({"input": [[1.0, 2, 3, 4]]}), tmp_path / "data.parquet")
    assert "cannot open" in refused("score", tmp_path / "none.onnx", tmp_path, tmp_path / "out")
    assert "no column name" in refused("score", model, tmp_path / "data.parquet", tmp_path / "out", "--key", "name")


def test_serve_refuses_a_port_that_is_taken(refused, tmp_path):
    pytest.importorskip("fastapi")
    write_classifier(tmp_path / "model.onnx")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused("serve", tmp_path, "--port", port, "--device", "cpu")
    assert f"cannot listen on 127.0.0.1, port {port}: Address already in use; choose another --port" in said


@pytest.mark.slow
def test_serve_until_it_is_told_to_stop(tmp_path):
    write_classifier(tmp_path / "model.onnx")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = "from varprop.cli.entry import main; main()"
    command = [sys.executable, "-c", code, "serve", str(tmp_path), "--port", str(port)]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    url = f"http://127.0.0.1:{port}"
    for _ in range(600):
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5)
            break
        except OSError:
            time.sleep(0.1)
    request = urllib.request.Request(f"{url}/predict", b'{"input": [1, 2, 3, 4]}', {"Content-Type": "application/json"})
    assert "label" in json.load(urllib.request.urlopen(request, timeout=20))
    server.send_signal(signal.SIGTERM)
    _, log = server.communicate(timeout=40)
    events = [json.loads(line) for line in log.splitlines()]
    assert any(each.get("path") == "/predict" and each["status"] == 200 for each in events)
    assert [each["url"] for each in events if each["event"] == "listening"] == [f"{url}/"]
    assert any(each["event"] == "stopped" for each in events)
