"""restrict: patterns over whole path segments."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from varprop.errors import PosteriorError
from varprop.posterior import Posterior
from varprop.posterior.names import selects

NAMES = [
    "embed.weight",
    "blocks.1.attn.weight",
    "blocks.1.attn.bias",
    "blocks.1.norm.weight",
    "blocks.10.attn.weight",
    "blocks.10.attn.bias",
    "blocks.2.mlp.0.bias",
    "head.bias",
    "bias",
]


def posterior():
    tensors = {name: torch.ones(2) for name in NAMES}
    return Posterior.from_tensors(tensors, tensors)


@pytest.mark.parametrize("pattern", ["blocks.1", "blocks.1.*", "blocks.1.**", "blocks.[1]", "**.1"])
def test_a_segment_is_matched_whole(pattern):
    assert posterior().restrict(pattern).names == tuple(NAMES[1:4])


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("**.bias", [name for name in NAMES if name.split(".")[-1] == "bias"]),
        ("*.bias", ["head.bias"]),
        ("**", NAMES),
        ("*", NAMES),
        ("bias", ["bias"]),
        (
            "blocks.*.attn",
            ["blocks.1.attn.weight", "blocks.1.attn.bias", "blocks.10.attn.weight", "blocks.10.attn.bias"],
        ),
        ("blocks.1?", ["blocks.10.attn.weight", "blocks.10.attn.bias"]),
        ("blocks.**.weight", ["blocks.1.attn.weight", "blocks.1.norm.weight", "blocks.10.attn.weight"]),
        ("**.mlp.**", ["blocks.2.mlp.0.bias"]),
        ("h*", ["head.bias"]),
        ("blocks.1.attn.weight", ["blocks.1.attn.weight"]),
    ],
)
def test_wildcards(pattern, expected):
    assert list(posterior().restrict(pattern).names) == expected


def test_several_patterns_select_their_union_in_order():
    assert posterior().restrict("head", "embed", "head.*").names == ("embed.weight", "head.bias")


def test_the_original_keeps_everything():
    full = posterior()
    part = full.restrict("head")
    assert len(full) == len(NAMES)
    assert part["head.bias"].mean is full["head.bias"].mean


def test_no_match_names_close_ones():
    with pytest.raises(PosteriorError) as caught:
        posterior().restrict("head", "block.1", "zzz")
    text = str(caught.value)
    assert "no parameter among the 9 of this posterior is selected by:" in text
    assert "'block.1' (did you mean 'blocks.1'" in text
    assert "  'zzz'\n" in text
    assert "'head'" not in text
    assert "** spans any number" in text


def test_patterns_must_be_strings():
    with pytest.raises(PosteriorError, match=r"not a list: restrict\(\*patterns\)"):
        posterior().restrict(["head"])
    with pytest.raises(PosteriorError, match="takes one or several patterns"):
        posterior().restrict()
    with pytest.raises(PosteriorError, match="selected by"):
        posterior().restrict("")


def oracle(pattern, name):
    """The same meaning as one regular expression over the name followed by a dot."""
    parts = []
    for segment in pattern.split("."):
        if segment == "**":
            parts.append(r"(?:[^.]+\.)*")
        else:
            parts.append(re.escape(segment).replace(r"\*", "[^.]*").replace(r"\?", "[^.]") + r"\.")
    return re.match("".join(parts), f"{name}.") is not None


segment = st.text("ab1", min_size=1, max_size=3)
wild = st.one_of(segment, st.text("ab1*?", min_size=1, max_size=3), st.sampled_from(["*", "**"]))


@given(st.lists(wild, min_size=1, max_size=4).map(".".join), st.lists(segment, min_size=1, max_size=5).map(".".join))
def test_patterns_mean_what_the_oracle_says(pattern, name):
    assert selects(pattern, name) == oracle(pattern, name)


@given(st.lists(segment, min_size=1, max_size=5), st.integers(1, 5))
def test_every_leading_path_selects_what_lies_below(segments, depth):
    name = ".".join(segments)
    path = ".".join(segments[:depth])
    assert selects(path, name)
    assert selects(f"{path}.**", name)
    assert not selects(f"{path}x", name)
    assert not selects(path, f"x{name}")
