"""Kinks of a model: found in its structure and by a jump of its slope, and answered with calls that work."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import vhat
from vhat.linalg.curvature.kinks import find_kinks
from vhat.models.jax import jax_problem
from vhat.models.problem import Problem
from vhat.models.torch import torch_problem

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3))
Y = np.abs(X[:, 0]) + X[:, 1] + 0.1 * RNG.normal(size=60)
W, V = RNG.normal(size=(3, 5)), RNG.normal(size=5)


class Units(nn.Module):
    """``activate(x W) V``."""

    def __init__(self, activate):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(W))
        self.v = nn.Parameter(torch.tensor(V))
        self.activate = activate

    def forward(self, x):
        return self.activate(x @ self.w) @ self.v


def in_place(z):
    z = z + 0
    z.view(-1).relu_()
    return z


def own_softmax(z):
    e = torch.exp(z - z.amax(dim=-1, keepdim=True))
    return e / e.sum(dim=-1, keepdim=True)


TORCH = {
    "kinked": {
        "relu": torch.relu,
        "leaky_relu": nn.functional.leaky_relu,
        "hardtanh": nn.functional.hardtanh,
        "hardswish": nn.functional.hardswish,
        "selu": torch.selu,
        "prelu": lambda z: nn.functional.prelu(z, z.new_tensor([0.2])),
        "abs": torch.abs,
        "amax": lambda z: z.amax(dim=-1, keepdim=True).expand(-1, 5),
        "maxpool": lambda z: nn.functional.max_pool1d(z[:, None], 5)[:, 0].expand(-1, 5),
        "where": lambda z: torch.where(z > 0, z, 0.1 * z),
        "mask": lambda z: z * (z > 0),
        "clamp": lambda z: z.clamp(min=-0.5),
        "in place": in_place,
    },
    "smooth": {
        "tanh": torch.tanh,
        "gelu": nn.functional.gelu,
        "silu": nn.functional.silu,
        "softplus": nn.functional.softplus,
        "mish": nn.functional.mish,
        "elu": nn.functional.elu,
        "celu": lambda z: nn.functional.celu(z, 2.0),
        "softmax": lambda z: z.softmax(dim=-1),
        "layer norm": lambda z: torch.tanh(nn.functional.layer_norm(z, (5,))),
    },
    # kinked operations of which the function knows nothing: not said to be kinked, nor to be smooth
    "unknown": {
        "square of abs": lambda z: z.abs() ** 2,
        "square of relu": lambda z: torch.relu(z) ** 2,
        "clamp out of reach": lambda z: torch.tanh(z.clamp(-1e3, 1e3)),
        "softmax by hand": own_softmax,
        "normalize": lambda z: nn.functional.normalize(z, dim=-1),
        "float32": lambda z: torch.tanh(z.float().clamp(-1e3, 1e3)).double(),
    },
}
JAX = {
    "kinked": {
        "relu": jax.nn.relu,
        "leaky_relu": jax.nn.leaky_relu,
        "hard_tanh": jax.nn.hard_tanh,
        "abs": jnp.abs,
        "max": lambda z: z.max(axis=1, keepdims=True) + 0 * z,
        "where": lambda z: jnp.where(z > 0, z, 0.1 * z),
        "in a loop": lambda z: jax.lax.scan(lambda c, _: (jax.nn.relu(c) - 0.1, None), z, None, 3)[0],
    },
    "smooth": {"tanh": jnp.tanh, "gelu": jax.nn.gelu, "softplus": jax.nn.softplus, "softmax": jax.nn.softmax},
    "unknown": {"elu": jax.nn.elu, "square of abs": lambda z: jnp.abs(z) ** 2},
}


def torch_model(name, verdict) -> Problem:
    return torch_problem(Units(TORCH[verdict][name]), X, Y, weight_decay=0.1)


def jax_model(name, verdict) -> Problem:
    activate = JAX[verdict][name]
    return jax_problem(lambda q, Z: activate(Z @ q["w"]) @ q["v"], {"w": W, "v": V}, X, Y, weight_decay=0.1)


def cases(table):
    return [(name, verdict) for verdict, functions in table.items() for name in functions]


def slope_jumps(activate) -> bool:
    """Whether a slope of the units jumps along a line, by differences of values on a fine grid."""
    t, step = np.linspace(-3.0, 3.0, 6001)[:, None], 1e-6
    start, direction = np.array([0.3, 1.0, -0.8, 0.6, -1.1]), np.array([1.0, 0.7, -0.4, 0.3, -0.9])
    left, right = (np.asarray(activate(start + (t + move) * direction), dtype=float) for move in (-step, step))
    slopes = (right - left) / (2 * step)
    return bool(np.max(np.abs(np.diff(slopes, axis=0))) > 0.05)


@pytest.mark.parametrize(("name", "verdict"), cases(TORCH))
def test_kinks_of_modules_are_told_from_smooth_ones(name, verdict):
    found = find_kinks(torch_model(name, verdict))
    assert found.verdict == verdict
    assert (found.jump > 0) == (verdict == "kinked")
    assert bool(found.names) == (verdict != "smooth")
    if name not in ("float32", "clamp out of reach"):
        activate = TORCH[verdict][name]
        assert slope_jumps(lambda z: activate(torch.tensor(z)).numpy()) == (verdict == "kinked")


@pytest.mark.parametrize(("name", "verdict"), [pytest.param(*case, marks=pytest.mark.slow) for case in cases(JAX)])
def test_kinks_of_jax_functions_are_told_from_smooth_ones(name, verdict):
    found = find_kinks(jax_model(name, verdict))
    assert found.verdict == verdict
    with jax.enable_x64(True):
        assert slope_jumps(lambda z: JAX[verdict][name](jnp.asarray(z))) == (verdict == "kinked")


def test_kinks_that_the_trained_parameters_do_not_pass_through_are_none():
    """Beneath a linear head, in a frozen part, and of the inputs alone."""
    body, head = nn.Sequential(nn.Linear(3, 8), nn.ReLU()), nn.Linear(8, 1)
    module = nn.Sequential(body, head, nn.Flatten(0)).double()
    assert find_kinks(torch_problem(module, X, Y, weight_decay=0.1)).verdict == "kinked"
    body.requires_grad_(False)
    assert find_kinks(torch_problem(module, X, Y, weight_decay=0.1)).verdict == "smooth"
    above = nn.Sequential(body, nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 1), nn.Flatten(0)).double()
    assert find_kinks(torch_problem(above, X, Y, weight_decay=0.1)).verdict == "smooth"


def test_a_network_whose_predictions_are_constant_along_every_line_has_no_kink():
    module = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1), nn.Flatten(0)).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    found = find_kinks(torch_problem(module, X, Y, weight_decay=0.1))
    assert (found.verdict, found.jump) == ("unknown", 0.0)
    assert vhat.from_torch(module, X, Y, weight_decay=0.1).audit().lines


def test_a_clamp_that_acts_is_a_kink_and_its_place_has_no_unit():
    """The same function of other units of inputs, parameters and responses."""
    found = []
    for unit in (1e-6, 1.0, 1e6):
        module = Units(lambda z, unit=unit: unit * torch.relu(z / unit))
        with torch.no_grad():
            module.w *= unit
        found.append(find_kinks(torch_problem(module, X, Y, weight_decay=0.1)))
    assert {each.verdict for each in found} == {"kinked"}
    np.testing.assert_allclose([each.jump for each in found], found[0].jump, rtol=1e-3)


# -- what a kinked model is told --------------------------------------------------------------------
def trained(activation=nn.ReLU, hidden=20, steps=60, **options):
    """A network as people train them: mini-batches left out, Adam, stopped early."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, hidden), activation(), nn.Linear(hidden, 1), nn.Flatten(0))
    optimizer = torch.optim.Adam(module.parameters(), lr=0.02)
    inputs, targets = torch.tensor(X).float(), torch.tensor(Y).float()
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(module(inputs), targets).backward()
        optimizer.step()
    return module, vhat.from_torch(module, X, Y, weight_decay=1e-3, loss="mse", **options)


@pytest.fixture
def products(monkeypatch):
    """The curvatures that products are asked for."""
    asked = []
    original = Problem.product

    def counted(self, v, curvature):
        asked.append(curvature)
        return original(self, v, curvature)

    monkeypatch.setattr(Problem, "product", counted)
    return asked


def test_no_product_with_the_exact_hessian_is_made_for_a_relu_network(products):
    _, fitted = trained()
    products.clear()  # the front end differentiates twice to see that this can be done
    with pytest.warns(vhat.VhatWarning) as said:
        fitted.interval(X[:5])
    assert [each.category for each in said].count(vhat.CurvatureWarning) == 1
    fitted.audit()
    assert "hessian" not in products
    fitted.weighted_norm(X[:2], curvature="ggn")
    assert "hessian" not in products


def messages(fitted):
    """Everything that is said to the owner of a model: warnings, audit, the refusal of polish."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        band = fitted.interval(X[:5])
    found = {type(each.message).__name__: str(each.message) for each in said}
    found |= {line.name: line.remedy for line in fitted.audit()}
    return found | {"guarantee": band.guarantee}


def test_no_line_sends_a_relu_network_to_polish_and_polish_refuses_it_at_once():
    _, fitted = trained()
    told = messages(fitted)
    assert {"CurvatureWarning", "NotMinimumWarning"} <= told.keys()
    assert not [name for name, text in told.items() if "polish" in text.lower()]
    for name in ("CurvatureWarning", "stationarity", "smallest eigenvalue", "smoothness"):
        assert "kinks (relu)" in told[name], name
        assert "fitted.linearised(validation=(X, y))" in told[name], name
    with pytest.raises(vhat.PolishError, match=r"kinks \(relu\).*linearised\(validation=\(X, y\)\)"):
        fitted.polish()


def test_the_calls_that_the_messages_name_succeed():
    """Without a warning, and with the network's own predictions."""
    module, fitted = trained()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tangent = fitted.linearised(validation=(X[::2] + 0.01, Y[::2]))
        band = tangent.interval(X[:5])
    np.testing.assert_allclose(band.center, module.double()(torch.tensor(X[:5])).detach().numpy(), rtol=1e-6)
    assert tangent.audit()["smoothness"].verdict == "by construction"


def test_a_smooth_network_that_was_stopped_early_is_offered_to_be_taken_as_it_is_first():
    _, fitted = trained(nn.Tanh)
    remedy = fitted.audit()["stationarity"].remedy
    assert 0 < remedy.index("fitted.linearised(validation=(X, y))") < remedy.index("fitted.polish()")
    assert "stopped early" in remedy


def test_the_exact_hessian_is_used_where_it_is_asked_for_and_kinks_are_said():
    """Few units and strong decay: a minimum between kinks."""
    module = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1), nn.Flatten(0)).double()
    fitted = vhat.from_torch(module, X, Y, weight_decay=10.0)
    with pytest.warns(vhat.NotMinimumWarning):
        band = fitted.interval(X[:3], curvature="hessian", noise=0.1)
    assert band.curvature == "hessian"
    assert "kinks (relu), of which the exact Hessian knows nothing" in band.guarantee
    saddle = vhat.from_torch(trained()[0], X, 30 * Y, weight_decay=1e-8)
    with pytest.raises(vhat.NotPositiveDefinite, match=r"kinks \(relu\).*curvature='ggn'.*linearised"):
        saddle.interval(X[:3], curvature="hessian", noise=0.1)


def test_decoupled_decay_is_explained_with_what_to_pass():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 20), nn.ReLU(), nn.Linear(20, 1), nn.Flatten(0))
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01, weight_decay=0.01)
    inputs, targets = torch.tensor(X).float(), torch.tensor(Y).float()
    for _ in range(300):
        optimizer.zero_grad()
        nn.functional.mse_loss(module(inputs), targets).backward()
        optimizer.step()
    line = vhat.from_torch(module, X, Y, weight_decay=0.01, loss="mse").audit()["alignment"]
    assert line.verdict == "fails"
    assert abs(line.value) < 0.2
    for words in (
        "decoupled decay (AdamW)",
        "Pass the optimiser's weight_decay",
        "fitted.linearised(validation=(X, y))",
    ):
        assert words in line.remedy
    assert "polish" not in line.remedy
