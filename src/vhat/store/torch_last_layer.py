"""Problems of a module's last layer: the layer's inputs take the place of the training inputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch

from vhat.checks import check_targets
from vhat.errors import StoreError
from vhat.models.problem import Problem
from vhat.models.torch.inputs import Layout
from vhat.models.torch.last_layer import TorchHead
from vhat.models.torch.last_layer_problem import make_head
from vhat.models.torch.read_state import read_state
from vhat.store.document import Document
from vhat.store.match_model import Brought
from vhat.store.torch import describe_module, module_of, refuse_other_tensors, whose, with_tensors

__all__ = ["describe", "inputs", "move", "point", "rebuild", "rows", "whose"]


def describe(problem: Problem) -> Document:
    """Describe the module, how it takes its inputs, and a few rows of these, on which it is probed again."""
    autodiff = _autodiff(problem)
    layout = autodiff.base.model.layout
    return {
        **describe_module(autodiff.base),
        "kind": layout.kind,
        "names": layout.names,
        "features": layout.features,
        "floating": layout.floating,
        "sample": tuple(np.asarray(part.numpy(force=True)) for part in autodiff.sample),
    }


def _autodiff(problem: Problem) -> TorchHead:
    return cast(TorchHead, problem.autodiff)


def point(problem: Problem) -> dict[str, np.ndarray]:
    """The parameters of the layer by name."""
    parts = _autodiff(problem).base.model.state.split(problem.theta)
    return {name: np.asarray(value.detach().numpy(force=True)) for name, value in parts.items()}


def inputs(problem: Problem) -> np.ndarray:
    """The inputs of the layer, (n, q)."""
    Z: np.ndarray = problem.X[0]
    return Z


def rows(problem: Problem) -> list[np.ndarray]:
    """Refuse: the training inputs themselves are not kept, so that no checksum can be compared with theirs.

    Raises:
        StoreError: Always.
    """
    del problem
    raise StoreError(
        'a model of parameters="last" holds the inputs of its last layer and not the training inputs: save it with '
        'data="copy".'
    )


def rebuild(saved: Document, at: dict[str, np.ndarray], X: np.ndarray, y: Any, brought: Brought) -> Problem:
    """Find the last layer of a copy of the module, with the saved tensors in it, again.

    Args:
        saved: The document, of which ``model``, ``weight_decay`` and ``sample_weight`` are read.
        at: The parameters, as :func:`point` gave them.
        X: The inputs of the layer.
        y: Training responses.
        brought: The caller's module and options.
    """
    model = saved["model"]
    module = module_of(model, brought)
    state, _ = read_state(module, tuple(at))
    refuse_other_tensors(state, model, at)
    layout = Layout(model["kind"], model["names"], model["features"], model["floating"], model["columns"])
    sample = tuple(torch.from_numpy(part).to(state.device) for part in model["sample"])
    copied = with_tensors(module, {**at, **model["fixed"]}, state.device)
    output = brought.output_for(model.get("output", {}))
    found = make_head(copied, layout, sample, brought.loss_for(model["loss"]), model["target_key"], output)
    own = found.base.model
    if own.state.names != tuple(at):
        raise StoreError(f"the last layer of the module given is {own.state.names}, of the one saved {tuple(at)}.")
    named = replace(own, state=replace(own.state, dtype=model["dtype"]))
    autodiff = replace(found, base=replace(found.base, model=named))
    shape = (len(X),) if autodiff.squeeze else (len(X), len(autodiff.head.mixing))
    return Problem(
        autodiff=autodiff,
        theta=autodiff.theta,
        decay=autodiff.arrays.native(saved["weight_decay"]),
        X=(X,),
        targets=check_targets(y, shape),
        weights=saved["sample_weight"],
        memory=cast(int, brought.memory),
    )


def move(problem: Problem, to: dict[str, np.ndarray]) -> Problem:
    """Return the problem at other saved parameters."""
    return problem.at(np.concatenate([np.ravel(to[name]) for name in _autodiff(problem).base.model.state.names]))
