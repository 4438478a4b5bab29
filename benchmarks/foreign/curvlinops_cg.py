"""curvlinops: its Hessian as a linear operator, and its inverse by conjugate gradients."""

from __future__ import annotations

import torch
from curvlinops import CGInverseLinearOperator, HessianLinearOperator
from curvlinops.examples import IdentityLinearOperator

from benchmarks.foreign.model import Problem


class Curvlinops:
    """``H + lam`` of the training loss over one batch, the quickest way to give it data that fit in memory."""

    def __init__(self, file: str) -> None:
        self.problem = problem = Problem(file)
        self.loss = torch.nn.MSELoss()  # one of the losses that curvlinops knows; twice ours
        self.hessian = HessianLinearOperator(
            problem.module, self.loss, problem.params, [(problem.X, problem.y)], check_deterministic=False
        )
        shapes = [tuple(parameter.shape) for parameter in problem.params]
        identity = IdentityLinearOperator(shapes, torch.device("cpu"), torch.float64)
        self.matrix = 0.5 * self.hessian + problem.lam * identity
        self.vectors = torch.randn(
            self.hessian.shape[1], 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
        )

    def product(self, columns: int) -> None:
        """A Hessian product with that many vectors."""
        _ = self.hessian @ self.vectors[:, :columns]

    def gradient(self) -> None:
        """One gradient of the loss, for scale."""
        loss = self.loss(self.problem.module(self.problem.X), self.problem.y)
        torch.autograd.grad(loss, self.problem.params)

    def norms(self, start: int, stop: int, rtol: float) -> list[float]:
        """V at some test points, solved together."""
        g = self.problem.gradients(self.problem.points[start:stop])
        inverse = CGInverseLinearOperator(self.matrix, tolerance=rtol, max_iter=20_000, max_tridiag_iter=0, eps=0.0)
        return self.problem.norms((inverse @ g.T).T)
