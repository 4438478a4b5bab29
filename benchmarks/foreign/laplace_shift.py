"""laplace-torch on the networks of the shift league, prior precision and noise tuned by rows that were held out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from laplace import Laplace
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

GRID = np.logspace(-5, 5, 21)
"""Prior precisions that are tried, in units of the noise: two a decade."""


class LaplaceShift:
    """Posteriors of several networks; nothing is kept between calls."""

    def __init__(self, file: str) -> None:  # noqa: ARG002  (each call names its own)
        torch.set_num_threads(1)

    def intervals(self, file: str, subset: str, structure: str) -> dict[str, Any]:
        """Return center and standard deviation of a new response at the test rows, one list a network.

        With noise sigma and prior precision tau the variance is ``sigma^2 (1 + g'(J'J + tau sigma^2)^-1 g)``: one
        factor tau sigma^2 and a sigma that is then known in closed form. Both are those under which the held-out rows
        are most likely.
        """
        with np.load(file) as kept:
            arrays = dict(kept)
        networks = len(arrays["w0"])
        found = [_one(arrays, network, subset, structure) for network in range(networks)]
        return {
            "center": [center.tolist() for center, _, _ in found],
            "spread": [spread.tolist() for _, spread, _ in found],
            "at end": sum(bool(at_end) for _, _, at_end in found),
        }


def _one(arrays: dict[str, np.ndarray], network: int, subset: str, structure: str) -> tuple[Any, Any, bool]:
    module = _module(arrays, network)
    rows = {name: torch.as_tensor(arrays[name]) for name in ("X", "y", "X_held", "X_test")}
    posterior = Laplace(
        module,
        "regression",
        subset_of_weights=subset,
        hessian_structure=structure,
        sigma_noise=1.0,
        prior_precision=1.0,
    )
    posterior.fit(DataLoader(TensorDataset(rows["X"], rows["y"][:, None]), batch_size=256))
    with torch.no_grad():
        center = module(rows["X_test"])[:, 0].numpy()
        errors = arrays["y_held"] - module(rows["X_held"])[:, 0].numpy()
    likelihood, level = np.full(len(GRID), -np.inf), np.empty(len(GRID))
    # The Jacobians do not depend on the prior: they are computed once, which laplace-torch's own tuning does not do.
    jacobians = _jacobians(posterior, torch.cat([rows["X_held"], rows["X_test"]]), subset)
    shares = []
    for i, precision in enumerate(GRID):
        posterior.prior_precision = float(precision)
        try:
            share = posterior.functional_variance(jacobians).detach().reshape(-1).numpy()
        except torch.linalg.LinAlgError:  # a prior too weak for float64
            shares.append(np.zeros(len(center)))
            continue
        shares.append(share[len(errors) :])
        spread = 1.0 + share[: len(errors)]
        variance = np.mean(errors**2 / spread)
        level[i] = np.sqrt(variance)
        likelihood[i] = -0.5 * (np.sum(np.log(spread)) + len(errors) * np.log(variance))
    best = int(np.argmax(likelihood))
    tried = np.flatnonzero(np.isfinite(likelihood))
    return center, level[best] * np.sqrt(1.0 + shares[best]), best in (tried[0], tried[-1])


def _jacobians(posterior: Any, X: torch.Tensor, subset: str) -> torch.Tensor:
    if subset == "last_layer":
        return posterior.backend.last_layer_jacobians(X)[0].detach()
    return posterior.backend.jacobians(X)[0].detach()


def _module(arrays: dict[str, np.ndarray], network: int) -> nn.Sequential:
    activation = {"relu": nn.ReLU, "tanh": nn.Tanh}[str(arrays["activation"])]
    depth = sum(name[0] == "w" for name in arrays)
    parts: list[nn.Module] = []
    for i in range(depth):
        w, b = arrays[f"w{i}"][network], arrays[f"b{i}"][network, 0]
        linear = nn.Linear(*w.shape, dtype=torch.float64)
        with torch.no_grad():
            linear.weight.copy_(torch.as_tensor(w.T))
            linear.bias.copy_(torch.as_tensor(b))
        parts += [linear, activation()]
    return nn.Sequential(*parts[:-1])
