"""The server: answers, and what is not answered."""

import base64
import http.client
import io
import json
import logging
import re
import shutil
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.deployment.conftest import softmax, write_classifier
from varprop.deployment.artifact import open_artifact
from varprop.deployment.preprocessing import FORMATS, Limits

serving = pytest.importorskip("varprop.deployment.serving")
image_library = pytest.importorskip("PIL.Image")
import uvicorn  # noqa: E402

X = np.array([[1.0, 2, -1, 0.5], [0.1, 0, 0, 0]], dtype=np.float32)
Settings = serving.Settings


@contextmanager
def running(artifact, **settings):
    """The port of a server, which is stopped in the end."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    config = uvicorn.Config(serving.make_app(artifact, Settings(**settings)), log_config=None, access_log=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        while not server.started:
            time.sleep(0.005)
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(20)
        listening.close()
    assert not thread.is_alive()


def ask(port, path="/predict", body=None, kind="application/json", method=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method or ("GET" if body is None else "POST"), path, body, {"Content-Type": kind})
        reply = connection.getresponse()
        text = reply.read().decode()
        return reply.status, json.loads(text) if "json" in reply.headers["Content-Type"] else text
    finally:
        connection.close()


def example(x):
    return json.dumps({"input": np.asarray(x).tolist()})


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    return open_artifact(write_classifier(tmp_path_factory.mktemp("served") / "classifier.onnx"))


@pytest.fixture(scope="module")
def port(artifact):
    with running(artifact, bytes=10_000, seconds=0.3) as found:
        yield found


def test_answers(port):
    for x in X:
        status, found = ask(port, body=example(x))
        probs = softmax(x[None])[0]
        assert status == 200
        assert found["probs"] == pytest.approx(probs.tolist(), rel=1e-5)
        assert found["label"] == ("cat", "dog", "owl")[probs.argmax()]
        assert found["confidence"] == pytest.approx(probs.max(), rel=1e-5)
        assert found["abstain"] == (probs.max() < 0.5)


def test_views(port):
    assert ask(port, "/health") == (200, {"status": "ok"})
    status, found = ask(port, "/model")
    assert (status, found["inputs"], found["threshold"]) == (200, {"input": [4]}, 0.5)
    ask(port, body=example(X[0]))
    ask(port, "/nothing/of/the/kind")
    status, text = ask(port, "/metrics")
    assert re.search(r'varprop_requests_total{path="/predict",status="200"} [1-9]', text)
    assert re.search(r'varprop_requests_total{path="other",status="404"} [1-9]', text)
    assert "/nothing/of/the/kind" not in text
    assert re.search(r"varprop_confidence_count [1-9]", text)
    status, described = ask(port, "/openapi.json")
    body = described["paths"]["/predict"]["post"]["requestBody"]["content"]
    assert body["application/json"]["schema"]["properties"].keys() == {"input"}
    status, page = ask(port, "/")
    assert status == 200
    assert "Try the model" in page


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 422, "nor JSON"),
        (b"\xff\xfe", 422, "UTF-8"),
        (b"[1, 2]", 422, "a JSON object"),
        (b"{}", 422, "lacks input"),
        (b'{"input": [1, 2]}', 422, "shape [2], not [4]"),
        (b'{"input": [[1, 2], [3]]}', 422, "not an array of numbers"),
        (b'{"input": ["a", "b", "c", "d"]}', 422, "not an array of numbers"),
        (b'{"input": [NaN, 0, 0, 0]}', 422, "NaN"),
        (b'{"input": [1e999, 0, 0, 0]}', 422, "infinity"),
        (b'{"text": "hello"}', 422, "does not read texts"),
        (b'{"image": "aGVsbG8="}', 422, "does not read images"),
        (b'{"image": "?"}', 422, "base64"),
        (b"[" * 9_000, 422, "nor JSON"),
        (b" " * 10_001, 413, "at most 10,000 bytes"),
    ],
)
def test_what_is_wrong_is_said(port, body, status, message):
    found = ask(port, body=body)
    assert found[0] == status
    assert message in found[1]["detail"]
    assert ask(port, body=example(X[0]))[0] == 200


def raw(port, *parts):
    """What is answered to bytes sent one after the other."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        for part in parts:
            connection.sendall(part)
        return connection.recv(1000)


HEAD = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


def test_long_requests_are_not_read(port):
    assert b" 413 " in raw(port, HEAD + b"Content-Length: 10000000000\r\n\r\n")
    chunk = b"1000\r\n" + b" " * 4096 + b"\r\n"
    assert b" 413 " in raw(port, HEAD + b"Transfer-Encoding: chunked\r\n\r\n", chunk, chunk, chunk)
    assert b" 400 " in raw(port, HEAD + b"Content-Length: minus one\r\n\r\n")
    assert ask(port, body=example(X[0]))[0] == 200


def test_slow_requests_do_not_hold_up_others(port):
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(raw, port, HEAD + b"Content-Length: 100\r\n\r\n{")
        assert ask(port, body=example(X[0]))[0] == 200
        assert b" 408 " in slow.result()


def test_clients_that_leave(port):
    body = example(X[0]).encode()
    for sent in (
        HEAD[:20],
        HEAD + b"Content-Length: 100\r\n\r\n{",
        HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body,
    ):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            connection.sendall(sent)
    assert ask(port, body=example(X[0]))[0] == 200
    assert ask(port, "/health")[0] == 200
    assert 'status="499"' in ask(port, "/metrics")[1]
    assert 'status="500"' not in ask(port, "/metrics")[1]


class Gate:
    """A pass that waits until it is let through, and fails where an input is 13."""

    def __init__(self, run):
        self.run, self.begun, self.open, self.sizes = run, threading.Event(), threading.Event(), []

    def __call__(self, batch):
        self.begun.set()
        self.open.wait(20)
        self.sizes.append(len(batch["input"]))
        if (batch["input"] == 13).any():
            raise RuntimeError("out of memory")
        return self.run(batch)


def test_requests_share_passes_but_not_errors(artifact):
    gate = Gate(artifact.run)
    with running(replace(artifact, run=gate), batch_size=4, delay=0.2) as port, ThreadPoolExecutor(5) as pool:
        first = pool.submit(ask, port, body=example(X[0]))
        assert gate.begun.wait(20)
        inputs = [X[0], X[1], [13, 0, 0, 0], X[1]]
        others = [pool.submit(ask, port, body=example(x)) for x in inputs]
        time.sleep(0.3)
        gate.open.set()
        assert first.result()[0] == 200
        assert [other.result()[0] for other in others] == [200, 200, 500, 200]
        assert others[1].result()[1]["probs"] == pytest.approx(softmax(X)[1].tolist(), rel=1e-5)
    assert sum(gate.sizes) == 9  # one, four together, and those four apart
    assert max(gate.sizes) == 4


def test_more_requests_than_may_wait(artifact):
    gate = Gate(artifact.run)
    with running(replace(artifact, run=gate), batch_size=1, delay=0, waiting=1) as port, ThreadPoolExecutor(6) as pool:
        asked = [pool.submit(ask, port, body=example(X[0]))]
        assert gate.begun.wait(20)
        asked += [pool.submit(ask, port, body=example(X[0])) for _ in range(5)]
        while sum(each.done() for each in asked) < 4:
            time.sleep(0.005)
        gate.open.set()
        found = sorted(each.result()[0] for each in asked)
    assert found == [200, 200, 503, 503, 503, 503]


def test_requests_under_way_are_answered_before_it_stops(artifact):
    gate = Gate(artifact.run)
    with ThreadPoolExecutor(1) as pool:
        with running(replace(artifact, run=gate)) as port:
            asked = pool.submit(ask, port, body=example(X[0]))
            assert gate.begun.wait(20)
            threading.Timer(0.2, gate.open.set).start()  # while it is being stopped
        assert asked.result()[0] == 200


@pytest.mark.parametrize("shape", [(-1,), (-1, 1), (-1, 2, 2)])
def test_regressions(artifact, shape):
    def run(batch):
        mean = batch["input"][:, : 4 if len(shape) == 3 else 1].numpy().reshape(shape)
        return {"prediction": mean, "std": np.abs(mean)}

    with running(replace(artifact, run=run, outputs=("prediction", "std"), threshold=None)) as port:
        count = 4 if len(shape) == 3 else 1
        assert ask(port, body=example([1, -2, 3, 4])) == (
            200,
            {"prediction": [1.0, -2.0, 3.0, 4.0][:count], "std": [1.0, 2.0, 3.0, 4.0][:count]},
        )


def reads_images(picture, return_tensors):
    """A processor: the mean of every channel, and 1."""
    assert return_tensors == "pt"
    mean = torch.tensor(np.array(picture)).float().mean((0, 1)) / 255
    return {"pixel_values": torch.cat([mean, torch.ones(1)])[None]}


def png(width, height, mode="RGB"):
    buffer = io.BytesIO()
    image_library.new(mode, (width, height), 128).save(buffer, "PNG")
    return buffer.getvalue()


def test_images(artifact):
    with running(replace(artifact, processor=reads_images), limits=Limits(pixels=100)) as port:
        status, found = ask(port, body=png(8, 8), kind="image/png")
        assert status == 200
        expected = softmax(np.array([[128 / 255, 0, 0, 1]], dtype=np.float32))[0]
        assert found["probs"] == pytest.approx(expected.tolist(), rel=1e-4)
        same = ask(port, body=json.dumps({"image": base64.b64encode(png(8, 8)).decode()}))
        assert same == (200, found)
        status, found = ask(port, body=png(11, 10), kind="image/png")
        assert status == 422
        assert "11 × 10 pixels, more than 100" in found["detail"]
        for wrong in (b"", b"GIF89a", png(8, 8)[:45], b"%!PS-Adobe-3.0 EPSF-3.0\n"):
            assert ask(port, body=wrong, kind="image/png")[0] == 422


def test_a_decompression_bomb_is_not_decoded(artifact):
    with running(replace(artifact, processor=reads_images)) as port:
        bomb = png(6_000, 6_000, "1")  # which would be 108 MB
        assert len(bomb) < 20_000
        status, found = ask(port, body=bomb, kind="image/png")
        assert status == 422
        assert "6000 × 6000 pixels" in found["detail"]


def test_logs_are_json_lines(port, caplog):
    with caplog.at_level(logging.INFO, serving.LOG.name):
        ask(port, body=example(X[0]))
        while not any(record.getMessage() == "request" for record in caplog.records):
            time.sleep(0.005)
    record = next(record for record in caplog.records if record.getMessage() == "request")
    line = json.loads(serving.JsonFormatter().format(record))
    assert {"time", "level", "event", "method", "path", "status", "ms"} <= line.keys()
    assert (line["path"], line["status"]) == ("/predict", 200)


@pytest.mark.second
def test_the_page_in_a_browser(port, artifact):
    sync_api = pytest.importorskip("playwright.sync_api")
    chromium = next(
        (path for path in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if path), None
    )
    if chromium is None:
        pytest.skip("no Chromium found: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--headless", "--no-sandbox"])
        page, failed = browser.new_page(), []
        page.on("pageerror", lambda error: failed.append(str(error)))
        page.goto(f"http://127.0.0.1:{port}/")
        page.fill("#input", example(X[0]))
        page.click("button")
        page.wait_for_selector(".answer")
        probs = softmax(X[:1])[0]
        assert page.inner_text(".answer") == f"{('cat', 'dog', 'owl')[probs.argmax()]}, confidence {probs.max():.3f}"
        assert len(page.query_selector_all(".row")) == 3
        page.fill("#input", "[]")
        page.click("button")
        page.wait_for_selector(".wrong")
        assert "a JSON object" in page.inner_text(".wrong")
        with running(replace(artifact, processor=reads_images)) as images:
            page.goto(f"http://127.0.0.1:{images}/")
            page.click("button")
            assert page.eval_on_selector("#input", "input => input.validity.valueMissing")
            assert page.inner_text("#output") == ""
            page.set_input_files("#input", [{"name": "x.png", "mimeType": "image/png", "buffer": b"broken"}])
            page.click("button")
            page.wait_for_selector(".wrong")
            assert page.inner_text(".wrong") == f"an image cannot be read: it is none of {', '.join(FORMATS)}"
            page.set_input_files("#input", [{"name": "x.png", "mimeType": "image/png", "buffer": png(8, 8)}])
            page.click("button")
            page.wait_for_selector(".answer")
        browser.close()
    assert failed == []
