"""A graph of pointwise ops as one loop of C++, for CPUs: compiled by the system's compiler, kept on disk.

What is written is what Triton is given, op by op (``triton_ops``), in terms of the few functions below. Compilers
vectorise such a loop; ``torch.compile`` comes to the same speed, but takes ten times as long to get there.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import itertools
import os
import platform
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor, fx

from varprop.kernels import codegen
from varprop.kernels.launch import DTYPES, aligned, logger, say

GRAIN = 1 << 16  # entries of a thread, a tenth of a millisecond: to wake it takes a tenth of that
BLOCK = 1024  # entries that are asked together whether they are narrow
# Without fused multiply-adds, which would make an entry depend on where in a block it stands.
FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off", "-shared", "-fPIC")
COMPILERS = ("c++", "g++", "clang++")

PRELUDE = """
#include <cmath>
#include <cstdint>
#include <cstring>
#ifdef __SSE__
#include <xmmintrin.h>
// What is below 1e-38 is 0: with less, processors are a hundred times slower.
#define MODE const unsigned mode = _mm_getcsr(); _mm_setcsr(mode | 0x8040)
#define RESTORE _mm_setcsr(mode)
#else
#define MODE
#define RESTORE
#endif
#define INLINE static inline __attribute__((always_inline))

INLINE float bits(int32_t x) { float y; std::memcpy(&y, &x, 4); return y; }
INLINE int32_t bits(float x) { int32_t y; std::memcpy(&y, &x, 4); return y; }
INLINE float maximum(float x, float y) { return x < y ? y : x; }
INLINE float minimum(float x, float y) { return y < x ? y : x; }
INLINE float where(bool c, float x, float y) { return c ? x : y; }
INLINE float where(int32_t c, float x, float y) { return bits((c & bits(x)) | (~c & bits(y))); }  // c is 0 or -1
INLINE float root(float x) { return std::sqrt(x); }
INLINE float rsqrt(float x) { return 1.0f / std::sqrt(x); }
INLINE float absolute(float x) { return std::fabs(x); }

// 2^k e^r with |r| <= log(2)/2; 2^k in two factors, one of which may be too small for a float.
INLINE float exponential(float x) {
  x = minimum(maximum(x, -104.0f), 89.0f);
  const float k = std::rint(x * 1.44269504088896341f);
  const float r = (x - k * 0.693145751953125f) - k * 1.42860682030941723e-6f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const int32_t n = (int32_t)k, half = n >> 1;
  return p * bits((half + 127) << 23) * bits((n - half + 127) << 23);
}

// log(m) + k log(2) with sqrt(1/2) <= m < sqrt(2), for x > 0.
INLINE float logarithm(float x) {
  const int32_t tiny = x < 1.17549435e-38f;
  const float raised = tiny ? x * 8388608.0f : x;
  int32_t n = bits(raised) - 0x3f3504f3;
  const float k = (float)(n >> 23) - (tiny ? 23.0f : 0.0f);
  const float m = bits((n & 0x007fffff) + 0x3f3504f3) - 1.0f;
  const float z = m * m;
  float p = 7.0376836292e-2f;
  p = p * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  float y = p * m * z - 2.12194440e-4f * k - 0.5f * z + m + 0.693359375f * k;
  y = x == 0.0f ? -INFINITY : y;
  y = x == INFINITY ? INFINITY : y;
  return x >= 0.0f ? y : NAN;
}
INLINE float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }
"""

CALLS = {
    "abs": "absolute", "exp": "exponential", "log": "logarithm", "maximum": "maximum", "minimum": "minimum",
    "rsqrt": "rsqrt", "sigmoid": "sigmoid", "sqrt": "root", "where": "where",
}  # fmt: skip


class Native:
    """The compiled loop of a graph, for tensors on a CPU; None where the graph itself must do. It works in float32."""

    def __init__(self, body: fx.GraphModule) -> None:
        self._body, self._lock = body, threading.Lock()
        self._function: Callable[..., None] | None = None
        self._fails = False

    def __call__(self, inputs: tuple[Tensor, ...], log_alpha: Tensor) -> tuple[Tensor, Tensor] | None:
        first = inputs[0]
        if not first.is_cpu or first.dtype not in DTYPES or not first.numel():
            return None
        if (function := self._ready()) is None:
            return None
        given = [x.float() for x in aligned(*inputs)]
        results = torch.empty_like(given[0]), torch.empty_like(given[1])
        pointers = [x.data_ptr() for x in (*given, *results)]
        alpha = float(log_alpha.detach().exp())
        _in_threads(lambda start, stop: function(alpha, start, stop, *pointers), first.numel())
        return results[0].to(first.dtype), results[1].to(first.dtype)

    def _ready(self) -> Callable[..., None] | None:
        """Compiled on first use, not once it pays off: results would change in the last digit in between."""
        if self._function is None and not self._fails:
            with self._lock:
                if self._function is None and not self._fails:
                    self._prepare()
        return self._function

    def _prepare(self) -> None:
        try:
            self._function = _loaded(emit(self._body))
        except KeyError:  # an op that is not known here
            self._fails = True
        except (OSError, subprocess.SubprocessError) as error:
            self._fails = True
            say(f"activations cannot be compiled here and run op by op, several times slower: {error!r}"[:500])


def emit(body: fx.GraphModule) -> str:
    """The source of ``kernel``, which works on the entries from ``start`` to ``stop``, block by block."""
    count = len(body.graph.find_nodes(op="placeholder"))
    names = [f"x{k}" for k in range(count)]
    load = [f"const float {x} = {x}_at[i]{' * alpha' if x == 'x1' else ''};" for x in names]
    pointers = [f"const float* __restrict__ {x}_at" for x in names] + [f"float* __restrict__ y{k}_at" for k in range(2)]

    def loop(graph: fx.GraphModule, results: str) -> str:
        lines, found = codegen.write(graph, names, "t")
        statements = [*load, *map(_statement, lines), results.format(*found)]
        return "for (int64_t i = begin; i < end; ++i) {\n" + "\n".join(statements) + "\n}"

    whole = loop(body, "y0_at[i] = {}; y1_at[i] = {};")
    if test := codegen.asked(body):
        answers = " & ".join("{}" for _ in test.graph.output_node().args[0])  # type: ignore[union-attr]
        narrow = loop(codegen.narrowed(body), "y0_at[i] = {}; y1_at[i] = {};")
        whole = f"int32_t narrow = -1;\n{loop(test, f'narrow &= {answers};')}\nif (narrow) {narrow} else {whole}"
    return f"""{PRELUDE}
extern "C" void kernel(float alpha, int64_t start, int64_t stop, {", ".join(pointers)}) {{
MODE;
for (int64_t begin = start; begin < stop; begin += {BLOCK}) {{
const int64_t end = begin + {BLOCK} < stop ? begin + {BLOCK} : stop;
{whole}
}}
RESTORE;
}}
"""


def _statement(line: str) -> str:
    """Of Triton, in C++. Answers are masks: of truth values and their negations compilers do not make vectors."""
    line = re.sub(r"= (\S+ (?:<|<=|>|>=|==) \S+)$", r"= \1 ? -1 : 0", line)
    line = re.sub(r"tl\.full\(x0\.shape, (.+?), tl\.float32\)", r"\1", line)
    line = re.sub(r"(\w+)\.to\(tl\.float32\)", r"where(\1, 1.0, 0.0)", line)
    line = re.sub(r"float\('(-?)inf'\)", r"\1INFINITY", line)
    line = re.sub(r"tl\.(\w+)\(", lambda match: f"{CALLS[match[1]]}(", line)
    return "const auto " + re.sub(r"(?<![\w.])(\d+\.\d*(e[-+]?\d+)?|\d+e[-+]?\d+)", r"\1f", line) + ";"


# --- compiling, and running in threads -----------------------------------------------------------------------


def _loaded(source: str) -> Callable[..., None]:
    if os.name != "posix":
        raise OSError("only where there is Linux or macOS")
    content = "\n".join((source, *FLAGS, _processor()))
    path = folder() / f"{hashlib.sha256(content.encode()).hexdigest()[:24]}.so"
    if not path.exists():
        _compile(source, path)
    if path.stat().st_uid != os.getuid():
        raise OSError(f"{path} belongs to somebody else")
    function = ctypes.CDLL(str(path)).kernel
    pointers = source[source.index('extern "C"') :].partition("{")[0].count("*")
    function.argtypes = [ctypes.c_float, ctypes.c_int64, ctypes.c_int64, *[ctypes.c_void_p] * pointers]
    function.restype = None
    return function


def _compile(source: str, path: Path) -> None:
    compiler = os.environ.get("CXX") or next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise OSError("there is no C++ compiler")
    logger.info("compiling a rule, once for all processes")
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        text, result = Path(scratch, "kernel.cpp"), Path(scratch, "kernel.so")
        text.write_text(source)
        command = [compiler, *FLAGS, NATIVE, str(text), "-o", str(result)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            raise OSError(f"{compiler}: {done.stderr.strip()}")
        result.replace(path)


NATIVE = "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"


@functools.cache
def folder() -> Path:
    """Where compiled rules are kept, for this user alone; where nothing can be kept, a folder of this process."""
    path = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "varprop"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return path
    except OSError:
        temporary = Path(tempfile.mkdtemp(prefix="varprop-"))
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
        return temporary


@functools.cache
def _processor() -> str:
    """What is compiled for one may not run on another, which may share the folder."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()} {platform.processor()} {flags}"


def _in_threads(work: Callable[[int, int], None], size: int) -> None:
    """As many as torch uses."""
    count = max(1, min(torch.get_num_threads(), size // GRAIN))
    first, *others = itertools.pairwise([size * k // count // BLOCK * BLOCK for k in range(count)] + [size])
    pending = [_pool(os.getpid()).submit(work, *span) for span in others]
    work(*first)
    for each in pending:
        each.result()


@functools.cache
def _pool(process: int) -> ThreadPoolExecutor:
    """Of a process; a forked one has none of its parent's threads."""
    return ThreadPoolExecutor(os.cpu_count(), "varprop")
