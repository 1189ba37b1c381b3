"""The server under load on loopback, with and without batching: latency, throughput, failures, memory.

python benchmarks/serving.py FILE.onnx --seconds 30 --clients 32   # JSON, a line for each batch size
python benchmarks/serving.py                       # of a network of 12 layers, which is made and exported first
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil


def exported(folder: Path) -> Path:
    """A classifier of vectors, large enough that passes take longer than HTTP does."""
    import torch
    from torch import nn

    import varprop as vp

    torch.manual_seed(0)
    inner = [layer for _ in range(10) for layer in (nn.Linear(512, 512), nn.LayerNorm(512), nn.GELU())]
    model = nn.Sequential(nn.Linear(64, 512), *inner, nn.Linear(512, 10)).eval()
    net = vp.propagate(model, vp.Posterior.isotropic(model, std=0.02))
    return vp.export(vp.Propagated(net), folder / "classifier.onnx", torch.randn(4, 64))


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def load(port: int, body: bytes, until: float, taken: list[float], failed: list[str]) -> None:
    """One client: the next request when the last one is answered."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    while time.perf_counter() < until:
        started = time.perf_counter()
        try:
            connection.request("POST", "/predict", body, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            reply.read()
            if reply.status != 200:
                failed.append(str(reply.status))
        except OSError as error:
            failed.append(repr(error))
            connection.close()
        taken.append(time.perf_counter() - started)


def share(sorted_times: list[float], level: float) -> float:
    return round(1000 * sorted_times[min(len(sorted_times) - 1, int(level * len(sorted_times)))], 2)


def measured(file: Path, batch_size: int, seconds: float, clients: int) -> dict[str, Any]:
    port = free_port()
    command = [Path(sys.executable).parent / "varprop", "serve", file, "--port", port, "--batch-size", batch_size]
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen([str(part) for part in command], stderr=log)
        try:
            _wait(port)
            process = psutil.Process(server.pid)
            body = json.dumps({"input": [0.1] * 64}).encode()
            _rush(port, body, seconds / 4, clients)  # until memory and threads are what they will be
            before = process.memory_info().rss
            times, failed = _rush(port, body, seconds, clients)
            after = process.memory_info().rss
        finally:
            server.send_signal(signal.SIGTERM)
            code = server.wait(40)
    times.sort()
    return {
        "batch_size": batch_size,
        "clients": clients,
        "cores": os.cpu_count(),
        "requests": len(times),
        "failed": len(failed),
        "per_second": round(len(times) / seconds, 1),
        "p50_ms": share(times, 0.5),
        "p99_ms": share(times, 0.99),
        "rss_mb_before": round(before / 1e6, 1),
        "rss_mb_after": round(after / 1e6, 1),
        "exit_code": code,
    }


def _rush(port: int, body: bytes, seconds: float, clients: int) -> tuple[list[float], list[str]]:
    taken: list[float] = []
    failed: list[str] = []
    until = time.perf_counter() + seconds
    threads = [threading.Thread(target=load, args=(port, body, until, taken, failed)) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return taken, failed


def _wait(port: int) -> None:
    for _ in range(1200):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError("the server did not start")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("file", type=Path, nargs="?")
    options.add_argument("--seconds", type=float, default=30)
    options.add_argument("--clients", type=int, default=32)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as made:
        model = given.file or exported(Path(made))
        for size in (1, 32):
            print(json.dumps(measured(model, size, given.seconds, given.clients)), flush=True)
