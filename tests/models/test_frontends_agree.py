"""torch = jax = numpy on the same weights."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import vhat

RNG = np.random.default_rng(7)
D, WIDTH, N = 3, 5, 30
X = RNG.normal(size=(N, D))
POINTS = RNG.normal(size=(6, D)) * 2
SHAPES = [(WIDTH, D), (WIDTH,), (1, WIDTH), (1,)]
THETA = [RNG.normal(size=shape) for shape in SHAPES]
FLAT = np.concatenate([w.ravel() for w in THETA])
WEIGHTS = RNG.uniform(0.5, 2.0, N)


def split(q):
    ends = np.cumsum([0, *[int(np.prod(s)) for s in SHAPES]])
    return [q[a:b].reshape(s) for a, b, s in zip(ends[:-1], ends[1:], SHAPES, strict=True)]


def numpy_net(q, Z):
    w, b, v, c = split(np.asarray(q))
    return (np.tanh(Z @ w.T + b) @ v.T + c)[:, 0]


def numpy_jac(q, Z):
    w, b, v, _ = split(np.asarray(q))
    hidden = np.tanh(Z @ w.T + b)
    back = v[0] * (1 - hidden**2)
    ones = np.ones((len(Z), 1))
    return np.concatenate([(back[:, :, None] * Z[:, None, :]).reshape(len(Z), -1), back, hidden, ones], axis=1)


def numpy_hess(q, Z):
    w, b, v, _ = split(np.asarray(q))
    hidden = np.tanh(Z @ w.T + b)
    slope, bend = 1 - hidden**2, -2 * hidden * (1 - hidden**2)
    H = np.zeros((len(Z), len(FLAT), len(FLAT)))
    padded = np.concatenate([Z, np.ones((len(Z), 1))], axis=1)  # inputs of w and of b
    for j in range(WIDTH):
        place = [*range(j * D, (j + 1) * D), WIDTH * D + j]
        out = WIDTH * D + WIDTH + j
        H[np.ix_(range(len(Z)), place, place)] = (
            v[0, j] * bend[:, j, None, None] * padded[:, :, None] * padded[:, None, :]
        )
        H[:, place, out] = H[:, out, place] = slope[:, j, None] * padded
    return H


def jax_net(q, Z):
    w, b, v, c = q
    return (jnp.tanh(Z @ w.T + b) @ v.T + c)[:, 0]


class TorchNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(D, WIDTH), torch.nn.Linear(WIDTH, 1)
        self.double()
        with torch.no_grad():
            for parameter, value in zip(self.parameters(), THETA, strict=True):
                parameter.copy_(torch.as_tensor(value))

    def forward(self, Z):
        return self.last(torch.tanh(self.first(Z)))[:, 0]


Y = numpy_net(FLAT, X) + 1e-3 * RNG.standard_normal(N)
# the output's bias goes free; a free bias inside a tanh could run off to infinity when the model is polished
DECAY = np.concatenate([np.full(WIDTH * D, 0.02), np.full(WIDTH, 0.01), np.full(WIDTH, 0.05), [0.0]])
NAMED = {"first.weight": 0.02, "first.bias": 0.01, "last.weight": 0.05, "last.bias": 0.0}


@pytest.fixture(scope="module", params=["scalar decay", "decay by parameter and weights"])
def models(request):
    plain = request.param == "scalar decay"
    options = {} if plain else {"sample_weight": WEIGHTS}
    decay = (0.02, 0.02, 0.02) if plain else (DECAY, [0.02, 0.01, 0.05, 0.0], NAMED)
    return {
        "numpy": vhat.from_numpy(
            numpy_net, FLAT, X, Y, jac=numpy_jac, hess=numpy_hess, weight_decay=decay[0], **options
        ),
        "numpy by differences": vhat.from_numpy(numpy_net, FLAT, X, Y, weight_decay=decay[0], **options),
        "jax": vhat.from_jax(jax_net, THETA, X, Y, weight_decay=decay[1], **options),
        "torch": vhat.from_torch(TorchNet(), X, Y, weight_decay=decay[2], **options),
    }


@pytest.mark.parametrize("curvature", ["hessian", "ggn"])
def test_the_weighted_norm_is_the_same_in_every_framework(models, curvature):
    found = {name: model.weighted_norm(POINTS, curvature=curvature) for name, model in models.items()}
    for name, rtol in (("torch", 1e-8), ("numpy", 1e-8), ("numpy by differences", 1e-5)):
        np.testing.assert_allclose(found[name].value, found["jax"].value, rtol=rtol, err_msg=name)
        np.testing.assert_allclose(found[name].unsupported, found["jax"].unsupported, rtol=1e-4, atol=1e-6)


def test_polish_leads_every_framework_to_the_same_minimum(models):
    bands = {name: model.polish().interval(POINTS, noise=0.1) for name, model in models.items()}
    for name, rtol in (("torch", 1e-7), ("numpy", 1e-7), ("numpy by differences", 1e-4)):
        np.testing.assert_allclose(bands[name].center, bands["jax"].center, rtol=1e-6, atol=1e-8, err_msg=name)
        np.testing.assert_allclose(bands[name].half_width, bands["jax"].half_width, rtol=rtol, err_msg=name)


def test_conjugate_gradients_run_on_every_framework(models):
    for name in ("torch", "numpy"):
        dense = models[name].weighted_norm(POINTS, curvature="ggn")
        iterated = models[name].weighted_norm(POINTS, curvature="ggn", solver=vhat.CG(rtol=1e-11))
        np.testing.assert_allclose(iterated.value, dense.value, rtol=1e-7)


def test_a_functional_sees_the_parameters_in_the_user_s_own_structure(models):
    entry = {"numpy": lambda q: q[0], "jax": lambda q: q[0][0, 0], "torch": lambda q: q["first.weight"][0, 0]}
    with pytest.warns(vhat.NotMinimumWarning):
        first = {name: models[name].functional(q, noise=0.1) for name, q in entry.items()}
    for band in first.values():
        assert band.center == pytest.approx(FLAT[0])
        assert band.standard_error == pytest.approx(first["jax"].standard_error, rel=1e-7)
