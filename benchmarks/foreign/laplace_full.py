"""laplace-torch: the full Gauss-Newton posterior over all weights, and its variance at the test points."""

from __future__ import annotations

import torch
from laplace import Laplace
from laplace.curvature import BackPackGGN, CurvlinopsGGN
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.foreign.model import Problem

BACKENDS = {"curvlinops": CurvlinopsGGN, "backpack": BackPackGGN}


class LaplaceFull:
    """The posterior of a fitted network with known noise and a prior that is the weight decay."""

    def __init__(
        self,
        file: str,
        dtype: str = "float32",
        backend: str = "curvlinops",
        structure: str = "full",
        noise: float = 1.0,
    ) -> None:
        self.problem = Problem(file, getattr(torch, dtype))
        self.backend, self.structure, self.noise = BACKENDS[backend], structure, noise

    def variances(self, points: int, batch: int) -> list[float]:
        """``sigma^2 g'(J'J + n lam)^-1 g`` at the first test points: without sigma, n times it is our ``shortcut``."""
        problem = self.problem
        n = len(problem.X)
        more = {"n_subset": n} if self.structure == "gp" else {}
        posterior = Laplace(
            problem.module,
            "regression",
            subset_of_weights="all",
            hessian_structure=self.structure,
            sigma_noise=self.noise,
            prior_precision=n * problem.lam / self.noise**2,
            backend=self.backend,
            **more,
        )
        posterior.fit(DataLoader(TensorDataset(problem.X, problem.y), batch_size=batch))
        _, variance = posterior(problem.points[:points], pred_type="gp" if self.structure == "gp" else "glm")
        return [float(v) for v in variance.reshape(-1)]
