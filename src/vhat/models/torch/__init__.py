"""Torch modules as problems."""

from vhat.models.torch.build import TorchProblem, torch_problem

__all__ = ["TorchProblem", "torch_problem"]
