"""Chromium without a window, driven over its DevTools pipe: nothing to install but the browser itself."""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
# Chromium reads commands from descriptor 3 and answers on 4. Both are first copied out of the way of each other.
LAUNCH = """
import fcntl, os, sys
copies = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
for copy, wanted in zip(copies, (3, 4)):
    os.dup2(copy, wanted)
    os.close(copy)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find():
    """The path of a Chromium, or None."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One page of a fresh browser. Use it as a context manager."""

    def __init__(self, path, profile, timeout=60):
        self.timeout, self._number, self._buffer, self.events = timeout, 0, b"", []
        read_commands, self._commands = os.pipe()
        self._replies, write_replies = os.pipe()
        launch = [sys.executable, "-c", LAUNCH, str(read_commands), str(write_replies), path]
        self._process = subprocess.Popen(
            [*launch, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(read_commands, write_replies),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_commands)
        os.close(write_replies)
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Network", "Log"):
                self.call(f"{domain}.enable")
        except BaseException:
            self.close()
            raise

    _session = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        os.close(self._commands)  # the browser ends when its pipe does
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._replies)

    def call(self, method, **parameters):
        """A DevTools command, e.g. ``Page.navigate``; returns its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._next()
            if reply.get("id") == self._number:
                if "error" in reply:
                    raise RuntimeError(f"{method}: {reply['error']['message']}")
                return reply["result"]
            self.events.append(reply)

    def _next(self):
        end = time.monotonic() + self.timeout
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._replies], [], [], max(0, end - time.monotonic()))
            piece = os.read(self._replies, 1 << 16) if ready else b""
            if not piece:
                raise TimeoutError("Chromium does not answer")
            self._buffer += piece
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def open(self, path, width=1400, height=900, scheme="light"):
        """Show a file at a size, in a light or dark scheme."""
        phone = width < 600
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=path.resolve().as_uri())
        end = time.monotonic() + self.timeout
        while self.js("document.readyState") != "complete" or self.js("location.href") == "about:blank":
            assert time.monotonic() < end, "the page does not load"
            time.sleep(0.05)

    def js(self, expression):
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"]["exception"].get("description"))
        return found["result"].get("value")

    def press(self, key, times=1):
        """A key of the keyboard, to whatever has the focus."""
        codes = {"ArrowRight": 39, "ArrowLeft": 37, "Home": 36, "End": 35}
        for _ in range(times):
            for kind in ("rawKeyDown", "keyUp"):
                self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key])

    def screenshot(self, path, whole=False):
        options = {}
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            options = {"captureBeyondViewport": True, "clip": {**size, "scale": 1}}
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png", **options)["data"]))
