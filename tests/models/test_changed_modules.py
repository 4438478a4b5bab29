"""A torch module that is changed after it was given: intervals are refused, whatever was changed."""

import pickle
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

import vhat
from tests.models.torch_cases import seeded

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 2))
Y = np.tanh(X[:, 0]) + 0.1 * RNG.standard_normal(40)
POINTS = RNG.normal(size=(3, 2))
CHANGED = "the module has changed since it was given"


class Scaled(nn.Module):
    """A small network with a plain attribute and a plain activation."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 3)
        self.act = nn.Tanh()
        self.last = nn.Linear(3, 1)
        self.scale = 1.0
        self.narrow = False

    def forward(self, x):
        h = self.last(self.act(self.first(x)))
        return self.scale * (h.float().double() if self.narrow else h)[:, 0]


def made():
    module = seeded(Scaled)
    return module, vhat.from_torch(module, X, Y, weight_decay=1e-2)


def set_scale(module):
    module.scale = 3.0


def set_activation(module):
    module.act = nn.Softplus()


def set_layer(module):
    module.last = nn.Sequential(OrderedDict(weighted=nn.Linear(3, 1)))


def set_cast(module):
    module.narrow = True


def set_hook(module):
    module.first.register_forward_hook(lambda part, given, found: 2 * found)


CHANGES = (set_scale, set_activation, set_layer, set_cast, set_hook)


@pytest.mark.parametrize("change", CHANGES, ids=lambda each: each.__name__)
def test_intervals_of_a_module_that_was_changed_are_refused(change):
    module, fitted = made()
    tangent = fitted.linearised(1e-2)
    tangent.interval(POINTS, noise=0.1)
    change(module)
    with pytest.raises(vhat.ModelError, match=f"{CHANGED}.*Call from_torch again"):
        fitted.interval(POINTS, noise=0.1)
    with pytest.raises(vhat.ModelError, match=CHANGED):
        tangent.interval(POINTS, noise=0.1)


CALLS = {
    "linearised": lambda fitted: fitted.linearised(1e-2),
    "sketch": lambda fitted: fitted.sketch(noise=0.1),
    "functional": lambda fitted: fitted.functional(lambda params: params["last.bias"]),
    "calibrate": lambda fitted: fitted.calibrate(POINTS, np.zeros(3), noise=0.1),
    "leave-one-out calibration": lambda fitted: fitted.calibrate("loo", noise=0.1),
    "weighted_norm": lambda fitted: fitted.weighted_norm(POINTS),
    "sensitivity": lambda fitted: fitted.sensitivity(POINTS),
    "leave_one_out": lambda fitted: fitted.leave_one_out(),
    "covariance": lambda fitted: fitted.covariance(noise=0.1),
    "acquire": lambda fitted: fitted.acquire(POINTS),
    "tangent_kernel": lambda fitted: fitted.tangent_kernel(POINTS),
    "polish": lambda fitted: fitted.polish(),
}


@pytest.mark.parametrize("name", CALLS)
def test_every_call_that_computes_a_spread_is_refused(name):
    module, fitted = made()
    set_scale(module)
    with pytest.raises(vhat.ModelError, match=CHANGED):
        CALLS[name](fitted)


class Stopped(nn.Module):
    """A network whose hidden layer may be cut off from the gradient, and whose predictions may be cut off above."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 3)
        self.last = nn.Linear(3, 1)
        self.cut = False
        self.highest = 1e9

    def forward(self, x):
        h = torch.tanh(self.first(x))
        return self.last(h.detach() if self.cut else h)[:, 0].clamp(max=self.highest)


def test_a_change_of_the_gradient_alone_is_noticed():
    module = seeded(Stopped)
    fitted = vhat.from_torch(module, X, Y, weight_decay=1e-2)
    fitted.problem.refuse_changed()
    module.cut = True
    with pytest.raises(vhat.ModelError, match=f"{CHANGED}.*its predictions are the same, but entries of"):
        fitted.problem.refuse_changed()


def test_a_change_at_the_last_rows_of_a_sorted_table_is_noticed():
    module = seeded(Stopped)
    with torch.no_grad():
        predictions = module.double()(torch.as_tensor(X)).numpy()
    order = np.argsort(predictions)
    fitted = vhat.from_torch(module, X[order], Y[order], weight_decay=1e-2)
    fitted.problem.refuse_changed()
    module.highest = float(np.quantile(predictions, 0.95))
    with pytest.raises(vhat.ModelError, match=CHANGED):
        fitted.problem.refuse_changed()


def test_an_undone_change_and_further_training_change_nothing():
    module, fitted = made()
    tangent = fitted.linearised(1e-2)
    before = tangent.interval(POINTS, noise=0.1)
    set_scale(module)
    module.scale = 1.0
    with torch.no_grad():
        module.first.weight += 1.0  # as training on does
    again = tangent.interval(POINTS[::-1].copy(), noise=0.1)
    np.testing.assert_allclose(again.standard_error[::-1], before.standard_error, rtol=1e-9)


def test_the_audit_reports_a_change_as_a_line():
    module, fitted = made()
    set_scale(module)
    assert fitted.audit(noise=0.1)["determinism"].verdict == "fails"


def test_a_sketch_notices_the_change_and_keeps_no_training_row():
    module, fitted = made()
    sketch = fitted.linearised(1e-2).sketch(noise=0.1)
    (reference,) = sketch.problem.autodiff.references
    distances = np.abs(reference.rows[0].numpy()[:, None, :] - X[None]).max(axis=2)
    assert distances.min() > 1e-6
    sketch.interval(POINTS)
    set_scale(module)
    with pytest.raises(vhat.ModelError, match=CHANGED):
        sketch.interval(POINTS)


def test_models_of_a_last_layer_and_of_two_heads_notice_it():
    module = seeded(Scaled)
    last = vhat.from_torch(module, X, Y, weight_decay=1e-2, parameters="last").polish()
    last.interval(POINTS, noise=0.1)
    set_activation(module)
    with pytest.raises(vhat.ModelError, match=CHANGED):
        last.interval(POINTS, noise=0.1)

    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.mean = nn.Linear(2, 1)
            self.spread = nn.Linear(2, 1)
            self.shift = 0.0

        def forward(self, x):
            return self.mean(x)[:, 0], self.spread(x)[:, 0] + self.shift

    heads = seeded(Heads)
    fitted = vhat.from_torch(heads, X, Y, weight_decay=1e-2, loss="gaussian_nll")
    fitted.problem.refuse_changed()
    heads.shift = 1.0  # of the variance head alone
    with pytest.raises(vhat.ModelError, match=CHANGED):
        fitted.interval(POINTS)


def test_a_pickled_copy_has_a_module_of_its_own_and_notices_changes_of_that():
    module, fitted = made()
    copied = pickle.loads(pickle.dumps(fitted.linearised(1e-2)))
    set_scale(module)
    copied.interval(POINTS, noise=0.1)
    copied.problem.autodiff.base.autodiff.model.module.act = nn.Softplus()
    with pytest.raises(vhat.ModelError, match=CHANGED):
        copied.interval(POINTS, noise=0.1)
