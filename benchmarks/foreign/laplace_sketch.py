"""laplace-torch beside sketches: seconds, memory and standard deviations of one approximation of the posterior."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import torch
from laplace import Laplace
from laplace.curvature import AsdlGGN, BackPackGGN, CurvlinopsGGN
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.foreign.model import Problem

BACKENDS = {"asdl": AsdlGGN, "backpack": BackPackGGN, "curvlinops": CurvlinopsGGN}


class LaplaceSketch:
    """A posterior with the noise that is known, and as prior the weight decay: ``n lam / sigma^2``."""

    def __init__(
        self,
        file: str,
        noise: float,
        subset: str = "all",
        structure: str = "kron",
        backend: str = "curvlinops",
        dtype: str = "float32",
    ) -> None:
        torch.set_num_threads(1)
        self.problem = problem = Problem(file, getattr(torch, dtype))
        self.posterior = Laplace(
            problem.module,
            "regression",
            subset_of_weights=subset,
            hessian_structure=structure,
            sigma_noise=noise,
            prior_precision=len(problem.X) * problem.lam / noise**2,
            backend=BACKENDS[backend],
        )
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew from what is resident now
        self.before = _resident("VmRSS")

    def fit(self, batch: int) -> None:
        """One pass over the training rows, in their order."""
        problem = self.problem
        self.posterior.fit(DataLoader(TensorDataset(problem.X, problem.y), batch_size=batch))

    def deviations(self, start: int, stop: int, batch: int) -> list[float]:
        """Standard deviations of the prediction without the noise of a response, ``batch`` rows at a time."""
        found = []
        for x in torch.split(self.problem.points[start:stop], batch):
            with torch.no_grad():
                _, variance = self.posterior(x, pred_type="glm")
            found.append(variance.detach().reshape(-1).double().sqrt())
        return torch.cat(found).tolist()

    def memory(self) -> dict[str, Any]:
        """Bytes at the peak, and how many of them were there before the fit; CPU seconds of the whole process."""
        use = resource.getrusage(resource.RUSAGE_SELF)
        return {"peak": _resident("VmHWM"), "before": self.before, "cpu": use.ru_utime + use.ru_stime}


def _resident(key: str) -> int:
    """VmRSS or VmHWM of this process in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"{key} is not in /proc/self/status: peak memory is measured on Linux only")
