"""Images changed as in CIFAR-10-C: fifteen kinds of damage in five strengths, by the package imagecorruptions."""

from __future__ import annotations

import functools
import importlib.util
import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.ndimage
import torch

from experiments.data.examples import Examples
from experiments.exceptions import ExperimentError

KINDS = (
    *(
        "gaussian_noise",
        "shot_noise",
        "impulse_noise",
        "defocus_blur",
        "glass_blur",
        "motion_blur",
        "zoom_blur",
        "snow",
    ),
    *("frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression"),
)
STRENGTHS = (1, 2, 3, 4, 5)


def corrupted(images: Examples, kind: str, strength: int) -> Examples:
    """RGB images of at least 32 × 32, changed; the same changes at every call, and numpy's random state as before."""
    change, state = _library(), np.random.get_state()  # noqa: NPY002 (the package draws from it)
    try:
        np.random.seed(0)  # noqa: NPY002
        pixels = images.inputs.permute(0, 2, 3, 1).numpy()
        changed = np.stack([np.asarray(change(each, corruption_name=kind, severity=strength)) for each in pixels])
    finally:
        np.random.set_state(state)  # noqa: NPY002
    return Examples(torch.from_numpy(changed.astype(np.uint8)).permute(0, 3, 1, 2).contiguous(), images.labels)


@functools.cache
def _library() -> Callable[..., Any]:
    """``imagecorruptions.corrupt``. Version 1.1.2, of 2020, expects names that other packages have dropped since."""
    gone: dict[str, dict[str, Any]] = {
        "pkg_resources": {"resource_filename": _beside},
        "scipy.ndimage.interpolation": {"map_coordinates": scipy.ndimage.map_coordinates},
    }
    missing = [name for name in gone if not _exists(name)]
    for name in missing:
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__dict__.update(gone[name])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of what other packages will drop next
            from imagecorruptions import corrupt, corruptions  # type: ignore[import-not-found]
    except ImportError as error:
        raise ExperimentError(
            f"imagecorruptions cannot be imported ({error}): pip install imagecorruptions scikit-image "
            "opencv-python-headless"
        ) from error
    finally:
        for name in missing:  # others ask whether these are there
            del sys.modules[name]
    noise = functools.partial(_seeded, corruptions.sk.util.random_noise)
    corruptions.gaussian = functools.partial(_gaussian, corruptions.gaussian)
    corruptions.np = _With(np, float_=np.float64)
    corruptions.sk = _With(corruptions.sk, util=_With(corruptions.sk.util, random_noise=noise))
    return corrupt


def _exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _beside(module: str, path: str) -> str:
    origin = sys.modules[module].__file__
    assert origin is not None
    return str(Path(origin).parent / path)


def _gaussian(smooth: Callable[..., Any], image: Any, *args: Any, multichannel: bool = False, **options: Any) -> Any:
    return smooth(image, *args, channel_axis=-1 if multichannel else None, **options)


def _seeded(noise: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """From numpy's global generator, as the rest of the package draws; not from a fresh one."""
    return noise(*args, rng=np.random.randint(2**31), **options)  # noqa: NPY002


class _With:
    """A module with some names of our own."""

    def __init__(self, module: Any, **names: Any) -> None:
        self._module = module
        self.__dict__.update(names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)
