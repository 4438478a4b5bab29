"""Fitted models of every kind, and what `load` has to be given for each; importable in a fresh process."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import torch
from scipy.optimize import curve_fit
from torch import nn

import vhat
from vhat.fit import Network, glorot, normal

RNG = np.random.default_rng(0)
X = RNG.normal(size=(36, 2))
Y = np.sin(X[:, 0]) + 0.5 * X[:, 1] + 0.1 * RNG.normal(size=36)
NEW = X[:5] + 0.25
GROUPS = (X[:, 0] > 0).astype(np.int32)


@dataclass(frozen=True)
class Case:
    """How a model is fitted, where it is asked, and what `load` needs beside the directory."""

    fit: Callable[[], vhat.FittedModel]
    x: Any
    brought: dict[str, Callable[[], Any]] = field(default_factory=dict)

    def options(self):
        return {name: make() for name, make in self.brought.items()}


# -- JAX -------------------------------------------------------------------------------------------
def own_network():
    network = Network((2, 6, 1), "softplus", initial=(normal(2.0), glorot()))
    return vhat.from_jax(network, network.init(1), X, Y, weight_decay=1e-3).polish()


def two_outputs(params, rows):
    hidden = jnp.tanh(rows["x"] @ params["layers"][0] + params["table"][params["codes"]][rows["group"]])
    return hidden @ params["layers"][1] * params["scale"]


def user_function():
    """A tree with a tuple, a float and fixed integers; two inputs, two outputs, decay and weights of each kind."""
    rng = np.random.default_rng(2)
    params = {
        "layers": (rng.normal(size=(2, 4)).astype(np.float32), rng.normal(size=(4, 2)).astype(np.float32)),
        "table": rng.normal(size=(2, 4)).astype(np.float32),
        "codes": np.array([1, 0]),
        "scale": 1.5,
    }
    decay = {"layers": (1e-2, 2e-2), "table": 1e-2, "codes": 0.0, "scale": 3e-2}
    rows = {"x": X, "group": GROUPS}
    y = np.stack([Y, -2 * Y], axis=1) + 0.1 * rng.normal(size=(36, 2))
    weight = rng.uniform(0.5, 2.0, 36)
    return vhat.from_jax(two_outputs, params, rows, y, weight_decay=decay, sample_weight=weight).polish()


def log_cosh(f, y):
    return jnp.sum(jnp.logaddexp(f - y, y - f))


def straight(params, rows):
    return rows @ params


def user_loss():
    return vhat.from_jax(straight, np.ones(2), X, Y, weight_decay=0.1, loss=log_cosh)


def equinox_model(seed):
    return eqx.nn.MLP(2, "scalar", 5, 1, activation=jnp.tanh, key=jax.random.key(seed))


def each_row(model, rows):
    return jax.vmap(model)(rows)


def equinox_function():
    return vhat.from_jax(each_row, equinox_model(0), X, Y, weight_decay=1e-2)


def far_from_a_minimum():
    """Never polished: the audit fails, the band rests on Gauss-Newton; frames with named columns."""
    network = Network((2, 40, 1), "tanh")
    frame = pd.DataFrame(X, columns=["left", "right"])
    return vhat.from_jax(network, network.init(3), frame, Y, weight_decay=1e-3)


# -- torch -----------------------------------------------------------------------------------------
class Normed(nn.Module):
    """Batch-norm with statistics of its own, a frozen layer, a buffer that is not part of the state dict."""

    def __init__(self, width=4):
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(2, width), nn.BatchNorm1d(width), nn.Linear(width, 1)
        self.body.requires_grad_(False)
        self.register_buffer("shift", torch.tensor(0.3), persistent=False)

    def forward(self, x):
        return self.head(torch.tanh(self.norm(self.body(x)) + self.shift))[:, 0]


def fresh_module(**options):
    torch.manual_seed(99)
    return Normed(**options).eval()


def torch_module():
    torch.manual_seed(0)
    module = Normed()
    for _ in range(3):
        module(torch.randn(50, 2) * 2 + 1)
    module.shift += 0.1
    return vhat.from_torch(module.eval(), torch.as_tensor(X, dtype=torch.float32), Y, weight_decay=1e-2).polish()


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.features, self.head = nn.Conv2d(2, 1, 3), nn.Linear(9, 1)

    def forward(self, images, scale):
        return self.head(torch.tanh(self.features(images)).flatten(1)) * scale[:, None]


def channels_last(n, seed):
    images = np.random.default_rng(seed).normal(size=(n, 2, 5, 5))
    scale = 1 + np.arange(n, dtype=float) / n
    return torch.as_tensor(images).to(memory_format=torch.channels_last), torch.as_tensor(scale)


def torch_images():
    torch.manual_seed(1)
    rows = channels_last(36, 3)
    return vhat.from_torch(Images(), rows, Y[:, None], weight_decay=0.3)


# -- NumPy and SciPy -------------------------------------------------------------------------------
def saturating(theta, x):
    return theta[0] * (1 - np.exp(-theta[1] * x))


def saturating_slopes(theta, x):
    e = np.exp(-theta[1] * x)
    return np.stack([1 - e, theta[0] * x * e], axis=1)


TIMES = np.linspace(0.1, 4, 30)
LEVELS = saturating([2.0, 1.3], TIMES) + 0.05 * np.random.default_rng(4).normal(size=30)


def numpy_by_differences():
    return vhat.from_numpy(saturating, [1.8, 1.0], TIMES, LEVELS, weight_decay=[0.0, 1e-3]).polish()


def numpy_with_jac():
    return vhat.from_numpy(saturating, [1.8, 1.0], TIMES, LEVELS, jac=saturating_slopes)


def by_site(theta, frame):
    return (
        theta[0] * frame["time"].to_numpy() + theta[1] * (frame["site"] == "north") + theta[2] * frame["kind"].cat.codes
    )


def sites():
    kind = pd.Categorical(["a", "b", "c"] * 10, categories=["b", "a", "c"], ordered=True)
    return pd.DataFrame({"time": TIMES, "site": ["north", "south"] * 15, "kind": kind}, index=range(100, 130))


def numpy_frame():
    y = np.asarray(by_site(np.array([1.0, 0.5, -0.2]), sites())) + 0.05 * np.random.default_rng(5).normal(size=30)
    return vhat.from_numpy(by_site, [1.0, 0.4, 0.1], sites(), y)


def surface(x, a, b, c):
    return a * np.exp(-b * x[0]) + c * x[1]


def scipy_rows():
    return np.stack([TIMES, np.cos(TIMES)])


def scipy_curve():
    sigma = np.linspace(0.5, 2, 30)
    y = surface(scipy_rows(), 2.0, 0.7, 0.3) + 0.03 * sigma * np.random.default_rng(6).normal(size=30)
    popt, _ = curve_fit(surface, scipy_rows(), y, sigma=sigma, p0=[1.0, 1.0, 1.0])
    return vhat.from_curve_fit(surface, popt, scipy_rows(), y, sigma).polish()


CASES = {
    "own network": Case(own_network, NEW),
    "jax function": Case(user_function, {"x": NEW, "group": GROUPS[:5]}, {"model": lambda: two_outputs}),
    "jax loss": Case(user_loss, NEW, {"model": lambda: straight, "loss": lambda: log_cosh}),
    "equinox": Case(equinox_function, NEW, {"model": lambda: (each_row, equinox_model(7))}),
    "far from a minimum": Case(far_from_a_minimum, NEW),
    "torch module": Case(torch_module, torch.as_tensor(NEW), {"model": fresh_module}),
    "torch images": Case(torch_images, channels_last(4, 8), {"model": Images}),
    "numpy": Case(numpy_by_differences, np.array([0.5, 5.0]), {"model": lambda: saturating}),
    "numpy with jac": Case(numpy_with_jac, np.array([0.5, 5.0]), {"model": lambda: (saturating, saturating_slopes)}),
    "numpy frame": Case(numpy_frame, sites().iloc[:4], {"model": lambda: by_site}),
    "curve_fit": Case(scipy_curve, scipy_rows()[:, :3] + 0.1, {"model": lambda: surface}),
}  # fmt: skip


def exactly(value):
    """Every bit of a value, as something that JSON and == can compare."""
    if isinstance(value, np.ndarray):
        return [value.dtype.str, list(value.shape), value.tobytes().hex()]
    return value.hex() if isinstance(value, float) else repr(value)


def fingerprint(fitted, x):
    """Every bit that a user sees: intervals of the mean and of an observation, the audit, the record of the polish."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", vhat.VhatWarning)
        bands = {"mean": fitted.interval(x), "new": fitted.interval(x, target="observation", noise=0.1)}
        lines = [dataclasses.asdict(line) for line in fitted.audit()]
    found = {
        f"{kind} {f.name}": exactly(getattr(band, f.name))
        for kind, band in bands.items()
        for f in dataclasses.fields(band)
    }
    found |= {f"{line['name']} {key}": exactly(value) for line in lines for key, value in line.items()}
    return found | {"polished": repr(fitted.polished), "fitted": repr(fitted)}
