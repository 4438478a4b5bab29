"""Torch modules and losses that cannot be used are refused in words."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.models.torch_cases import OnceDifferentiable, Wrapped, case, data, mlp, seeded
from vhat.errors import InputError, MemoryBudgetError, ModelError
from vhat.models.torch import torch_problem


class ChangesInput(Wrapped):
    def forward(self, x):
        x += 1
        return super().forward(x)


class Counting(Wrapped):
    def __init__(self):
        super().__init__(torch.tanh)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count += 1
        return super().forward(x)


class Renormed(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(5, 3, max_norm=0.1), nn.Linear(3, 1)

    def forward(self, x):
        return self.head(self.table(x[:, 0].long().clamp(0, 4)))


class Checkpointed(Wrapped):
    def __init__(self):
        super().__init__(torch.tanh)

    def forward(self, x):
        return self.last(checkpoint(lambda z: torch.tanh(self.first(z)), x, use_reentrant=False))


class Hidden(Wrapped):
    def __init__(self):
        super().__init__(torch.tanh)
        self.list = [self.first.weight]

    def forward(self, x):
        return self.last(torch.tanh(x @ self.list[0].T))


class Constant(nn.Module):
    def __init__(self):
        super().__init__()
        self.unused = nn.Linear(3, 1)

    def forward(self, x):
        return x[:, :1] ** 2


def overwrite(h):
    out = torch.exp(h)
    out += 1
    return torch.sigmoid(out) * out.sin_()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: Wrapped(lambda h: nn.functional.dropout(h, 0.5, training=True)),
            "two evaluations of the same rows differ",
        ),
        (lambda: Wrapped(lambda h: h + np.random.default_rng().normal()), "two evaluations of the same rows differ"),
        (lambda: Wrapped(lambda h: h + random.random()), "two evaluations of the same rows differ"),
        (lambda: Wrapped(lambda h: h - h.mean(0)), "depends on the other rows of the call"),
        (lambda: Wrapped(nn.BatchNorm1d(4, track_running_stats=False)), "one row alone|other rows of the call"),
        (lambda: Wrapped(lambda h: h @ torch.ones(4, 4)), "float64 and it mixes dtypes"),
        (lambda: Wrapped(overwrite), "in place on a tensor that autograd needs"),
        (lambda: Wrapped(OnceDifferentiable.apply), "wrong second derivative"),
        (lambda: Wrapped(lambda h: h.detach()), "operation without gradient"),
        (lambda: Wrapped(lambda h: torch.from_numpy(h.numpy())), "leaves autograd"),
        (lambda: Checkpointed().double(), "checkpointing"),
        (lambda: Hidden().double(), r"uses its parameters first\.weight by other references"),
        (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 1)), "weight_norm"),
        (lambda: ChangesInput(torch.tanh), "changes its inputs in place"),
        (Counting, "changes its buffers in its forward pass .count."),
        (Renormed, "changes its own parameters"),
        (Constant, "does not depend on any trainable parameter"),
        (lambda: nn.Sequential(mlp(3, 4, 1), Apply(lambda f: f.detach())), "does not depend on any trainable"),
        (lambda: nn.Sequential(mlp(3, 4, 1), Apply(lambda f: f.argmax(1))), "dtype torch.int64"),
        (lambda: nn.Sequential(mlp(3, 4, 1), Apply(torch.round)), "leaves autograd .*rounding"),
        (lambda: nn.Sequential(mlp(3, 4, 1), Apply(lambda f: 0 * f + 1)), "derivative of the prediction is zero"),
        (lambda: nn.Sequential(mlp(3, 4, 1), Apply(lambda f: (f - f.detach()).abs().sqrt())), "not finite"),
        (lambda: nn.Sequential(mlp(3, 4, 1), Apply(lambda f: (f, f))), "returned a tuple"),
        (lambda: nn.Sequential(mlp(3, 4, 1), Apply(lambda f: f[None])), "returned shape"),
        (lambda: nn.Sequential(mlp(3, 4, 1), Apply(lambda f: f / 0)), "NaN or infinite values in rows 0, 1"),
        (lambda: nn.LazyLinear(1), "not initialised"),
        (
            lambda: nn.Sequential(nn.Linear(4, 1)),
            r"module\(X\) in float64 failed.*Give X in the shape",
        ),
        (lambda: mlp(3, 4, 1).requires_grad_(False), "nothing that training moved"),
        (lambda: mlp(3, 4, 1).to("meta"), "device meta has no float64"),
        (lambda: nn.Linear(3, 1, dtype=torch.complex64), "complex"),
    ],
)
def test_unusable_module_is_refused_in_words(make, words):
    module = seeded(make)
    with pytest.raises(ModelError, match=words):
        torch_problem(module, data(9, 3), data(9, 1), weight_decay=0.1)


class Apply(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def test_what_is_not_a_module_is_refused():
    with pytest.raises(ModelError, match=r"give a torch\.nn\.Module"):
        torch_problem(lambda x: x, data(9, 3), data(9, 1), weight_decay=0.1)


@pytest.mark.parametrize(
    ("part", "named"),
    [
        (lambda: nn.Dropout(0.1), r"step \(Dropout\)"),
        (lambda: nn.AlphaDropout(0.1), r"step \(AlphaDropout\)"),
        (lambda: nn.BatchNorm1d(4), r"step \(BatchNorm1d\)"),
        (nn.RReLU, r"step \(RReLU\)"),
    ],
)
def test_training_mode_is_refused_naming_the_submodules(part, named):
    module = seeded(lambda: Wrapped(part())).train()
    with pytest.raises(ModelError, match=f"{named}.*call module.eval"):
        torch_problem(module, data(9, 3), data(9, 1), weight_decay=0.1)
    torch_problem(module.eval(), data(9, 3), data(9, 1), weight_decay=0.1)


def test_training_mode_without_anything_that_cares_is_fine():
    module = seeded(lambda: Wrapped(nn.Dropout(0.0))).train()
    torch_problem(module, data(9, 3), data(9, 1), weight_decay=0.1)


def test_module_put_back_into_training_mode_is_refused_later_and_found_random_by_facts():
    module = seeded(lambda: Wrapped(nn.Dropout(0.5)))
    problem = torch_problem(module, data(9, 3), data(9, 1), weight_decay=0.1)
    assert problem.facts().deterministic
    module.train()
    with pytest.raises(ModelError, match="training mode again"):
        problem.predict(problem.X)
    assert not problem.facts().deterministic


def test_parameters_that_are_not_finite_are_refused_by_name():
    module = seeded(lambda: mlp(3, 4, 1))
    with torch.no_grad():
        module[2].bias.fill_(float("nan"))
    with pytest.raises(ModelError, match=r"2\.bias"):
        torch_problem(module, data(9, 3), data(9, 1), weight_decay=0.1)


@pytest.mark.parametrize(
    ("loss", "error", "words"),
    [
        ("mae", InputError, "loss='mae' is not known"),
        (lambda f, y: (f - y).abs(), ModelError, "no second derivative"),
        (lambda f, y: torch.log(f - y).sum(), ModelError, "loss or its derivatives are not finite"),
        (lambda f, y: 1.0, ModelError, "returned float"),
        (lambda f, y: (f - y)[None].expand(2, 3), ModelError, r"returned \(2, 3\)"),
        (lambda f, y: OnceDifferentiable.apply(f - y), ModelError, "differentiating the loss twice failed"),
    ],
)
def test_unusable_loss_is_refused(loss, error, words):
    with pytest.raises(error, match=words):
        torch_problem(seeded(lambda: mlp(3, 4, 1)), data(9, 3), data(9, 1), weight_decay=0.1, loss=loss)


def test_unusable_weights_and_memory_are_refused():
    module, X, y, _ = case("one output")
    with pytest.raises(InputError, match="sample_weight has shape"):
        torch_problem(module, X, y, weight_decay=0.1, sample_weight=torch.ones(3))
    with pytest.raises(MemoryBudgetError, match="one row needs"):
        torch_problem(module, X, y, weight_decay=0.1, memory=10)
