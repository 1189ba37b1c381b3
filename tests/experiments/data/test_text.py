import gzip

import pytest
import torch

from experiments.data import Sentences, Tokens, hold_out, load, sst2
from tests.experiments.data.formats import GLUE, OTHER_GLUE, glue
from experiments.faults import DataError


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("texts", [GLUE, OTHER_GLUE])
def test_sentences_and_labels(tmp_path, texts, zipped):
    found = load("sst2", glue(tmp_path, texts, zipped))
    assert (found.name, found.classes) == ("sst2", ("negative", "positive"))
    assert found.train.sentences == ["hide new secretions from the parental units", 'that "loves its characters']
    assert found.train.labels.tolist() == [0, 1]
    assert found.train.labels.dtype == torch.int64
    assert found.dev.sentences == ["it 's a charming\u2028and often affecting journey ."]
    assert len(found.dev) == 1


def test_hidden_test_labels_are_no_labels(tmp_path):
    assert sst2(glue(tmp_path / "official")).test is None
    test = sst2(glue(tmp_path / "other", OTHER_GLUE)).test
    assert test.sentences == ["uneasy mishmash of styles and genres ."]
    assert test.labels.tolist() == [0]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("train.tsv", "sentence\tlabel\ngood\t1\nbad\t0\t0\n", "line 3 of .* has 3 columns, and its header 2"),
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
    with pytest.raises(DataError, match=r"dev\.tsv is not UTF-8 text: invalid continuation byte at byte 17"):
        sst2(tmp_path)


def test_damaged_gzip(tmp_path):
    path = glue(tmp_path, zipped=True) / "train.tsv.gz"
    whole = path.read_bytes()
    for content in (whole[:-3], whole[:-8] + b"abcd" + whole[-4:], b"nonsense"):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"train\.tsv\.gz is not a whole gzip file"):
            sst2(tmp_path)
    path.write_bytes(gzip.compress(GLUE["train.tsv"].encode()))
    assert len(sst2(tmp_path).train) == 2


IDS = torch.arange(12).view(4, 3)


def test_tokens_are_read_by_rows():
    tokens = Tokens(IDS, torch.ones_like(IDS), torch.tensor([0, 1, 1, 0]))
    rows = torch.tensor([2, 0])
    assert {name: value.tolist() for name, value in tokens.read(rows).items()} == {
        "input_ids": IDS[rows].tolist(),
        "attention_mask": [[1] * 3] * 2,
    }
    taken = tokens.take(rows)
    assert taken.labels.tolist() == [1, 0]
    assert taken.token_type_ids is None
    assert len(taken) == 2
    typed = Tokens(IDS, torch.ones_like(IDS), torch.zeros(4).long(), token_type_ids=IDS * 0)
    assert set(typed.take(slice(1, 3)).read(slice(None))) == {"input_ids", "attention_mask", "token_type_ids"}
    seen, held_out = hold_out(typed, 1)
    assert (len(seen), len(held_out)) == (3, 1)


def test_tokens_must_fit_together():
    labels = torch.zeros(4).long()
    with pytest.raises(DataError, match=r"attention_mask is torch.int64 of shape \[4, 2\]"):
        Tokens(IDS, torch.ones_like(IDS)[:, :2], labels)
    with pytest.raises(DataError, match=r"attention_mask is torch.float32 of shape \[4, 3\]; all tokens should be"):
        Tokens(IDS, torch.ones(4, 3), labels)
    with pytest.raises(DataError, match=r"input_ids is torch.int64 of shape \[12\]"):
        Tokens(IDS.flatten(), IDS.flatten(), labels)
    with pytest.raises(DataError, match="tokens of 4 sentences and 3 labels"):
        Tokens(IDS, IDS, labels[:3])
    with pytest.raises(DataError, match="1 sentences and 4 labels"):
        Sentences(["good"], labels)
