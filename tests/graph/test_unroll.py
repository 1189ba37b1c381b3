"""Recurrent layers are captured step by step, packed sequences as padded ones."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import varprop as vp
from tests.models import posterior_of


class Tagger(nn.Module):
    """A label for each step."""

    def __init__(self, kind=nn.LSTM, *, total=None, **options):
        super().__init__()
        self.recurrent, self.total = kind(3, 4, batch_first=True, **options), total
        width = (options.get("proj_size") or 4) * (2 if options.get("bidirectional") else 1)
        self.head = nn.Linear(width, 2)

    def forward(self, x, lengths=None, state=None):
        if lengths is not None:
            x = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        y, _ = self.recurrent(x, state)
        if lengths is not None:
            y, _ = pad_packed_sequence(y, batch_first=True, total_length=self.total)
        return self.head(y)


def make(*args, seed=0, **options):
    torch.manual_seed(seed)
    return Tagger(*args, **options).double().eval(), torch.randn(3, 4, 3, dtype=torch.float64)


KINDS = [(nn.LSTM, {}), (nn.GRU, {}), (nn.RNN, {"nonlinearity": "relu", "bias": False}), (nn.RNN, {})]
FULL = {"num_layers": 2, "bidirectional": True}


@pytest.mark.second
@pytest.mark.filterwarnings("ignore:Tagger cannot be captured with free sizes")
@pytest.mark.parametrize(("kind", "options"), KINDS[1:])
def test_a_network_of_certain_weights_is_the_layer(kind, options):
    model, x = make(kind, **options)
    net = vp.propagate(model, posterior_of(model, 0.0))
    torch.testing.assert_close(net(x).mean, model(x))
    assert net.signatures[0].startswith("float64[s")  # the batch is free, the length is not
    torch.testing.assert_close(net(x[:1, :3]).mean, model(x[:1, :3]))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "options"), [(nn.LSTM, {"proj_size": 3}), *KINDS])
@pytest.mark.parametrize("packed", [False, True])
def test_layers_directions_projections_and_packed_sequences(kind, options, packed):
    model, x = make(kind, **options, **FULL)
    net = vp.propagate(model, posterior_of(model, 0.0))
    rest = (torch.tensor([2, 4, 3]),) if packed else ()
    torch.testing.assert_close(net(x, *rest).mean, model(x, *rest))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "options"), [*KINDS, (nn.LSTM, FULL)])
def test_moments_are_near_to_samples(kind, options):
    """Noise that steps share is left out: a fifth of the standard deviation at most, in the median a twentieth."""
    model, x = make(kind, **options)
    posterior = posterior_of(model, 1e-4)
    found = vp.propagate(model, posterior)(x)
    draws = torch.stack(list(vp.MonteCarlo(model, posterior, samples=2000).draws(x)))
    ratio = found.var.sqrt() / draws.std(0)
    assert ratio.min() > 0.8
    assert ratio.max() < 1.2
    assert abs(ratio.median() - 1) < 0.07
    error = (found.mean - draws.mean(0)).abs() / draws.std(0)
    assert error.max() < 0.15


def test_lengths_are_values_of_the_call():
    """One graph for sequences of any lengths; a sequence is what it is alone."""
    model, x = make(nn.LSTM, total=3)
    x = x[:, :3]
    net = vp.propagate(model, posterior_of(model, 1e-12))
    for lengths in map(torch.tensor, ([3, 2, 1], [2, 3, 2])):
        torch.testing.assert_close(net(x, lengths).mean, model(x, lengths))
    first, alone = net(x, torch.tensor([3, 2, 1])), net(x[1:2], torch.tensor([2]))
    assert len(net.signatures) == 1
    torch.testing.assert_close(alone.var[0], first.var[1])
    assert (first.var[1, 2] == 1e-12).all()  # behind its end there is the bias of the head alone


def test_lengths_on_the_cpu_beside_a_network_elsewhere():
    """As torch packs by them. On the meta device there are no numbers, but all the ops of a GPU."""
    model, x = make(nn.RNN, total=2)
    net, lengths = vp.propagate(model, posterior_of(model)), torch.tensor([2, 1, 2])
    net(x[:, :2], lengths)
    net.to("meta")
    found = net(x[:, :2].to("meta"), lengths)
    assert found.mean.device.type == found.var.device.type == "meta"
    assert len(net.signatures) == 1
    for wrong in (x[:, :2], x[0, 0], lengths.int()):
        with pytest.raises(vp.errors.DeviceMismatchError, match="an input is on cpu, the network on meta"):
            net(x[:, :2].to("meta"), wrong)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_lengths_on_the_cpu_beside_a_network_on_a_gpu():
    model, x = make(nn.RNN, total=2)
    net, lengths = vp.propagate(model, posterior_of(model)), torch.tensor([2, 1, 2])
    expected = net(x[:, :2], lengths)
    model.cuda()
    found = vp.propagate(model, posterior_of(model))(x[:, :2].cuda(), lengths)
    torch.testing.assert_close(found.mean.cpu(), expected.mean)
    torch.testing.assert_close(found.var.cpu(), expected.var)


def test_a_length_that_depends_on_values_is_refused_whenever_it_comes():
    model, x = make(nn.RNN)
    net = vp.propagate(model, posterior_of(model))
    assert net(x, torch.tensor([4, 2, 1])).mean.shape[1] == 4
    with pytest.raises(vp.errors.CaptureError, match="crop the batch before, or give it total_length"):
        net(x, torch.tensor([3, 2, 1]))
    assert len(net.signatures) == 1


def test_what_reads_packed_data_is_refused():
    class Reader(Tagger):
        def forward(self, x, lengths):
            return self.head(self.recurrent(pack_padded_sequence(x, lengths, batch_first=True))[0].data)

    model = Reader(nn.RNN).eval()
    with pytest.raises(vp.errors.CaptureError, match="reads the data of a packed sequence"):
        vp.propagate(model, posterior_of(model))(torch.randn(2, 3, 3), torch.tensor([3, 1]))


@pytest.mark.slow
def test_states_are_given_and_may_be_random():
    model, x = make(nn.GRU)
    state = torch.randn(1, 3, 4, dtype=torch.float64)
    plain = vp.propagate(model, posterior_of(model, 0.0))
    torch.testing.assert_close(plain(x, state=state).mean, model(x, state=state))
    assert (plain(x, state=vp.Moments(state, torch.full_like(state, 0.1))).var > 0).all()


@pytest.mark.second
@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_cells_in_a_loop_share_their_scales(kind):
    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = kind(3, 4)

        def forward(self, x):
            state = None
            for step in x.unbind(1):
                state = self.cell(step, state)
            return state[0] if isinstance(state, tuple) else state

    model, x = Loop().eval(), torch.randn(2, 3, 3)
    net = vp.propagate(model, posterior_of(model, 0.0))
    torch.testing.assert_close(net(x).mean, model(x))
    names = {"LSTMCell": 5, "GRUCell": 3, "RNNCell": 1}[kind.__name__]
    assert sum(name.startswith("cell.") for name in net.scales) == names


@pytest.mark.second
def test_audit_says_that_steps_share_noise():
    model, x = make(nn.RNN)
    table = vp.audit(model, posterior_of(model), x)
    assert not table.missing
    recurrent = [row for row in table if row.path == "recurrent" and row.op == "aten.linear.default"]
    assert all("share" in row.note for row in recurrent[2:])
    assert len(recurrent) > 2


def test_dropout_between_layers_is_refused_in_training():
    model = nn.GRU(3, 4, num_layers=2, dropout=0.5)
    with pytest.raises(vp.errors.TrainingModeError, match=r"model.eval\(\)"):
        vp.propagate(model, posterior_of(model), output=0)(torch.randn(2, 3, 3))


@pytest.mark.second
def test_a_saved_network_is_loaded(tmp_path):
    model, x = make(nn.GRU, total=4)
    net = vp.propagate(model, posterior_of(model))
    lengths = torch.tensor([3, 1, 2])
    expected = net(x, lengths)
    net.save_pretrained(tmp_path)
    loaded = vp.MomentNet.from_pretrained(tmp_path, model)
    torch.testing.assert_close(loaded(x, lengths), expected)
    assert loaded.signatures == net.signatures
