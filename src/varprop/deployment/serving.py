"""A predictor over HTTP: FastAPI and uvicorn, with requests gathered into batches."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import logging
import os
import socket
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from pydantic import BaseModel
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from varprop.deployment.artifact import Artifact
from varprop.deployment.batching import Batcher, OverloadError
from varprop.deployment.preprocessing import Example, Limits, Preprocessor
from varprop.errors import InputError

PAGE = Path(__file__).parent / "page" / "trial.html"
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src blob: data:"
)
CLOSED = 499  # what servers note down for a client that left
LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Settings:
    """``batch_size`` and ``delay`` are the batcher's; ``bytes`` and ``seconds`` what a request may take to arrive."""

    batch_size: int = 16
    delay: float = 0.005
    waiting: int = 256
    bytes: int = 16 * 2**20
    seconds: float = 10.0
    limits: Limits = field(default_factory=lambda: Limits(pixels=25_000_000))


class Reply(BaseModel):
    """``label``, ``probs`` and ``confidence``, of a regression ``prediction`` and ``std``; ``abstain`` if it may."""

    label: str | int | None = None
    confidence: float | None = None
    probs: list[float] | None = None
    prediction: list[float] | None = None
    std: list[float] | None = None
    abstain: bool | None = None


class Metrics:
    """What Prometheus reads."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("varprop_requests", "Requests.", ["path", "status"], registry=self.registry)
        self.seconds = Histogram("varprop_request_seconds", "Seconds for an answer.", registry=self.registry)
        sizes, tenths = [1, 2, 4, 8, 16, 32, 64, 128], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99, 1]
        self.batch = Histogram("varprop_batch_size", "Examples in a pass.", buckets=sizes, registry=self.registry)
        self.confidence = Histogram("varprop_confidence", "Of answers.", buckets=tenths, registry=self.registry)
        self.abstained = Counter("varprop_abstained", "Answers that abstain.", registry=self.registry)
        self.waiting = Gauge("varprop_waiting", "Requests that wait for a pass.", registry=self.registry)

    def answered(self, answer: dict[str, Any]) -> None:
        if "confidence" in answer:
            self.confidence.observe(answer["confidence"])
        if answer.get("abstain"):
            self.abstained.inc()


def make_app(artifact: Artifact, settings: Settings | None = None) -> FastAPI:
    """The application: ``/predict``, ``/health``, ``/model``, ``/metrics``, ``/openapi.json``, and a page at ``/``."""
    settings = settings or Settings()
    preprocessor, metrics = Preprocessor(artifact, settings.limits), Metrics()
    readers = ThreadPoolExecutor(min(4, os.cpu_count() or 1), "read")
    batcher = Batcher(
        preprocessor.answers, settings.batch_size, settings.delay, settings.waiting, metrics.batch.observe
    )
    metrics.waiting.set_function(batcher.queue.qsize)

    @asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        batcher.start()
        LOG.info("ready", extra={"fields": {"model": artifact.sha256}})
        yield
        await batcher.stop()
        readers.shutdown()
        LOG.info("stopped", extra={"fields": {}})

    app = FastAPI(title="varprop", docs_url=None, redoc_url=None, lifespan=running)
    app.add_middleware(RequestLog, metrics=metrics)

    @app.post("/predict", response_model_exclude_none=True, openapi_extra=_request_schema(preprocessor))
    async def predict(request: Request) -> Reply:
        """The answer for one example: an image file or a text as the body, or a JSON object."""
        body = await _body(request, settings)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        loop = asyncio.get_running_loop()
        try:
            example = await loop.run_in_executor(readers, _read, preprocessor, kind, body)
        except InputError as error:
            raise HTTPException(422, str(error)) from None
        started = time.perf_counter()
        try:
            answer = await batcher.answer(example)
        except OverloadError as error:
            raise HTTPException(503, str(error), {"Retry-After": "1"}) from None
        metrics.seconds.observe(time.perf_counter() - started)
        metrics.answered(answer)
        return Reply(**answer)

    _add_views(app, preprocessor, metrics, batcher)
    return app


def _add_views(app: FastAPI, preprocessor: Preprocessor, metrics: Metrics, batcher: Batcher) -> None:
    """The endpoints that only show something."""
    artifact = preprocessor.artifact

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Whether answers can be given."""
        if not batcher.is_alive:
            raise HTTPException(503, "the batcher has stopped: start the server again")
        return {"status": "ok"}

    @app.get("/model")
    async def model() -> dict[str, Any]:
        """What the model takes and answers."""
        shapes = {each.name: [size or "any" for size in each.sizes] for each in artifact.inputs}
        about = {"sha256": artifact.sha256, "classes": artifact.classes, "threshold": artifact.threshold}
        return {**about, "reads": preprocessor.columns[0], "inputs": shapes}

    @app.get("/metrics", response_class=Response)
    async def show_metrics() -> Response:
        """For Prometheus."""
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def page() -> HTMLResponse:
        return HTMLResponse(PAGE.read_text(encoding="utf-8"), headers={"Content-Security-Policy": POLICY})


async def _body(request: Request, settings: Settings) -> bytes:
    """All of it, unless it is too long or too slow: what is too long is not read."""
    too_long = HTTPException(413, f"a request has at most {settings.bytes:,} bytes", {"Connection": "close"})
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > settings.bytes:
        raise too_long
    parts, size = [], 0
    try:
        async with asyncio.timeout(settings.seconds):
            async for part in request.stream():
                size += len(part)
                if size > settings.bytes:
                    raise too_long
                parts.append(part)
    except TimeoutError:
        raise HTTPException(408, f"a request arrives within {settings.seconds:g} s", {"Connection": "close"}) from None
    except ClientDisconnect:
        raise HTTPException(CLOSED, "the client left") from None
    return b"".join(parts)


def _read(preprocessor: Preprocessor, kind: str, body: bytes) -> Example:
    if kind.startswith("image/"):
        return preprocessor.read({"image": body})
    if kind == "text/plain":
        return preprocessor.read({"text": _decoded(body)})
    try:
        example = json.loads(_decoded(body))
    except (ValueError, RecursionError) as error:
        raise InputError(f"the body is neither an image, a text (Content-Type: text/plain) nor JSON: {error}") from None
    if not isinstance(example, dict):
        raise InputError("an example is a JSON object with text, image (base64) or the model's inputs by name")
    if isinstance(example.get("image"), str):
        try:
            example["image"] = base64.b64decode(example["image"], validate=True)
        except binascii.Error as error:
            raise InputError(f"image is not base64: {error}") from None
    return preprocessor.read(example)


def _decoded(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"the body is not UTF-8: {error}") from None


def _request_schema(preprocessor: Preprocessor) -> dict[str, Any]:
    """The body of a request, for OpenAPI."""
    raw = preprocessor.raw
    properties: dict[str, Any] = {raw: {"type": "string"}} if raw else {}
    properties |= {name: {"type": "array", "items": {}} for name in preprocessor.inputs}
    content: dict[str, Any] = {"application/json": {"schema": {"type": "object", "properties": properties}}}
    if raw == "text":
        content["text/plain"] = {"schema": {"type": "string"}}
    if raw == "image":
        content["image/*"] = {"schema": {"type": "string", "format": "binary"}}
    return {"requestBody": {"required": True, "content": content}}


class RequestLog:
    """Counts and logs every request."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, watched)
        finally:
            known = getattr(scope.get("route"), "path", "other")  # not what strangers ask for: it has no end
            self.metrics.requests.labels(known, status).inc()
            taken = round(1000 * (time.perf_counter() - started), 2)
            fields = {"method": scope["method"], "path": known, "status": status, "ms": taken}
            LOG.info("request", extra={"fields": fields})


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {"time": round(record.created, 3), "level": record.levelname.lower(), "event": record.getMessage()}
        fields |= getattr(record, "fields", {})
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def serve(artifact: Artifact, settings: Settings | None = None, *, host: str = "127.0.0.1", port: int = 8000) -> None:
    """Answer until the process is told to stop (SIGTERM, Ctrl-C); requests that are under way are answered first."""
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        reason = str(error.strerror).partition(" (")[0]  # which says the address once more
        raise InputError(f"cannot listen on {host}, port {port}: {reason}; choose another --port") from None
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # it says the same in more words
    config = uvicorn.Config(
        make_app(artifact, settings),
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=30,
    )
    with listening:
        place = f"[{host}]" if ":" in host else host
        LOG.info("listening", extra={"fields": {"url": f"http://{place}:{listening.getsockname()[1]}/"}})
        uvicorn.Server(config).run([listening])
