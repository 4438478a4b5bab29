"""Torch modules as problems."""

from vhat.models.torch.build import torch_problem

__all__ = ["torch_problem"]
