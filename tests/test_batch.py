from collections import namedtuple

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import BatchFeature

import varprop as vp
from varprop.batch import read
from varprop.errors import InputError

X, MASK, Y = torch.arange(12.0).view(6, 2), torch.ones(6, 1), torch.arange(6)
PAIR = namedtuple("Pair", "a b")(X, BatchFeature({"mask": MASK}))


def only(batches):
    (batch,) = read(batches)
    return batch


@pytest.mark.parametrize(
    ("batches", "args", "kwargs"),
    [
        ([(X, Y)], [X], {}),
        ([[X, Y]], [X], {}),
        ((X, Y), [X], {}),  # one batch by itself
        ([((X, MASK), Y)], [X, MASK], {}),
        ([(X, MASK, Y)], [X, MASK], {}),
        (((X, MASK), Y), [X, MASK], {}),
        (({"x": X, "mask": MASK}, Y), [], {"x": X, "mask": MASK}),
        ([({"x": X, "mask": MASK}, Y)], [], {"x": X, "mask": MASK}),
        ([{"x": X, "labels": Y}], [], {"x": X}),
        ({"x": X, "labels": Y}, [], {"x": X}),
        ([{"x": X, "label": Y}], [], {"x": X}),
        ([BatchFeature({"x": X, "labels": Y})], [], {"x": X}),
        (DataLoader(TensorDataset(X, Y), batch_size=6), [X], {}),
        (iter([(X, Y)]), [X], {}),
    ],
)
def test_shapes_of_batches(batches, args, kwargs):
    batch = only(batches)
    assert len(batch.args) == len(args)
    assert all(torch.equal(a, b) for a, b in zip(batch.args, args, strict=True))
    assert batch.kwargs.keys() == kwargs.keys()
    assert all(torch.equal(batch.kwargs[key], kwargs[key]) for key in kwargs)
    assert torch.equal(batch.target, Y)


@pytest.mark.parametrize("inputs", [(X, MASK), [X, MASK], namedtuple("Pair", "a b")(X, MASK)], ids=type)
def test_inputs_of_a_call_that_takes_one(inputs):
    """They stay together as they are; columns of their own beside the target do not become one."""
    for data in ((inputs, Y), [(inputs, Y)]):
        (batch,) = read(data, one=True)
        (found,) = batch.args
        assert type(found) is type(inputs)
        assert all(map(torch.equal, found, inputs))
    for data, count in (([(X, MASK, Y)], 2), ([((X,), Y)], 1)):
        (batch,) = read(data, one=True)
        assert list(map(type, batch.args)) == [torch.Tensor] * count


def test_moments_are_one_input():
    batch = only([(vp.Moments(X, X), Y)])
    assert isinstance(batch.args[0], vp.Moments)


def test_splitting_cuts_what_has_a_row_per_example():
    shared = torch.ones(3)
    batch = only([({"x": X, "nested": [MASK], "input": vp.Moments(X, X), "shared": shared, "named": PAIR}, Y)])
    parts = [batch.rows(0, 4), batch.rows(4, 8)]
    assert [len(part) for part in parts] == [4, 2]
    assert torch.equal(torch.cat([part.kwargs["x"] for part in parts]), X)
    assert [part.kwargs["nested"][0].shape[0] for part in parts] == [4, 2]
    assert [part.kwargs["input"].var.shape[0] for part in parts] == [4, 2]
    assert [part.kwargs["named"].b["mask"].shape[0] for part in parts] == [4, 2]
    assert all(torch.equal(part.kwargs["shared"], shared) for part in parts)


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "no batches"),
        (DataLoader(TensorDataset(X[:0], Y[:0])), "no batches"),
        ([(X[:0], Y[:0])], "empty"),
        (X, "give an iterable"),
        (5, "give an iterable"),
        ([X], "a batch is a Tensor"),
        ([{"x": X}], "no 'labels'"),
        ([(X, [1, 2])], "is a list, not a tensor"),
        ([(X, torch.tensor(1))], "single number: give single examples as a DataLoader"),
        ([(X[0], 1)], "single number"),
        ((torch.zeros(400, 2), torch.zeros(399)), "399 targets for inputs of 400 rows"),
    ],
)
def test_what_is_no_batch(batches, message):
    with pytest.raises(InputError, match=message):
        list(read(batches))
