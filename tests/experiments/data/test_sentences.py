import gzip

import pytest
import torch

from experiments.data.examples import Examples, hold_out
from experiments.data.sentences import sst2
from experiments.exceptions import DataError
from tests.experiments.data.formats import GLUE, OTHER_GLUE, glue

pytestmark = pytest.mark.second


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("texts", [GLUE, OTHER_GLUE])
def test_sentences_and_labels(tmp_path, texts, zipped):
    found = sst2(glue(tmp_path, texts, zipped))
    assert found.classes == ("negative", "positive")
    assert found.train.texts == ["hide new secretions from the parental units", 'that "loves its characters']
    assert found.train.labels.tolist() == [0, 1]
    assert found.train.labels.dtype == torch.int64
    assert found.dev.texts == ["it 's a charming\u2028and often affecting journey ."]


def test_hidden_test_labels_are_no_labels(tmp_path):
    assert sst2(glue(tmp_path / "official")).test is None
    test = sst2(glue(tmp_path / "other", OTHER_GLUE)).test
    assert test.texts == ["uneasy mishmash of styles and genres ."]
    assert test.labels.tolist() == [0]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("train.tsv", "sentence\tlabel\ngood\t1\nbad\t0\t0\n", "line 3 of .* has not as many columns as its header"),
        ("train.tsv", "sentence\tlabel\ngood\tyes\n", "line 2 of .* has the label 'yes' instead of 0 or 1"),
        ("dev.tsv", "sentence\tlabel\ngood\t1\nbad\t-1\n", "line 3 of .* has the label '-1' instead of 0 or 1"),
        ("dev.tsv", "sentence\tlabel\ngood\t2\n", "line 2 of .* has the label '2' instead"),
        ("dev.tsv", "index\tsentence\n0\tgood\n", "has no column 'label'"),
        ("train.tsv", "sentence\tlabel\n", "holds no sentences"),
        ("train.tsv", "a\tb\n1\t2\n", "should name a column 'sentence'"),
        ("train.tsv", "", "holds no sentences"),
    ],
)
def test_damage_is_named_with_its_file(tmp_path, name, text, message):
    (glue(tmp_path) / name).write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        sst2(tmp_path)
    assert str(tmp_path / name) in str(caught.value)


def test_other_encodings(tmp_path):
    (glue(tmp_path) / "dev.tsv").write_bytes("sentence\tlabel\ncrème\t1\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"dev\.tsv is not a text in UTF-8: .*invalid continuation byte"):
        sst2(tmp_path)


def test_damaged_gzip(tmp_path):
    path = glue(tmp_path, zipped=True) / "train.tsv.gz"
    whole = path.read_bytes()
    for content in (whole[:-3], whole[:-8] + b"abcd" + whole[-4:], b"nonsense"):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"train\.tsv\.gz is not a whole file"):
            sst2(tmp_path)
    path.write_bytes(gzip.compress(GLUE["train.tsv"].encode()))
    assert len(sst2(tmp_path).train.labels) == 2


IDS = torch.arange(12).view(4, 3)


def test_tokens_are_read_by_rows():
    tokens = Examples({"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}, torch.tensor([0, 1, 1, 0]))
    rows = torch.tensor([2, 0])
    assert {name: value.tolist() for name, value in tokens.read(rows).items()} == {
        "input_ids": IDS[rows].tolist(),
        "attention_mask": [[1] * 3] * 2,
    }
    taken = tokens.take(rows)
    assert taken.labels.tolist() == [1, 0]
    assert len(taken) == 2
    seen, held_out = hold_out(tokens, 1)
    assert (len(seen), len(held_out)) == (3, 1)
