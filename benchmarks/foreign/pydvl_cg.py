"""pyDVL: influence functions by conjugate gradients: ``(H + lam)^-1`` times gradients of the loss."""

from __future__ import annotations

import logging

import torch
from pydvl.influence.torch import CgInfluence
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.foreign.model import Problem


def _half_mse(prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return 0.5 * torch.mean((prediction - target) ** 2)


class PyDVL:
    """Influence factors of test points.

    At a test point with response ``f(x) - 1`` the gradient of the loss is the gradient of the prediction.
    """

    def __init__(self, file: str, together: bool) -> None:
        logging.disable(logging.WARNING)
        self.problem = Problem(file)
        self.together = together

    def norms(self, start: int, stop: int, rtol: float) -> list[float]:
        """V at some test points."""
        problem = self.problem
        model = CgInfluence(
            problem.module,
            _half_mse,
            regularization=problem.lam,
            rtol=rtol**0.5,  # its iteration stops at rtol^2 |b|
            atol=0.0,
            maxiter=20_000,
            solve_simultaneously=self.together,
        )
        model = model.fit(DataLoader(TensorDataset(problem.X, problem.y), batch_size=len(problem.X)))
        x = problem.points[start:stop]
        with torch.no_grad():
            y = problem.module(x) - 1.0
        return problem.norms(model.influence_factors(x, y).detach())
