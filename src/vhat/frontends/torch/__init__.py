"""Torch modules as problems."""

from vhat.frontends.torch.door import TorchProblem, torch_problem

__all__ = ["TorchProblem", "torch_problem"]
