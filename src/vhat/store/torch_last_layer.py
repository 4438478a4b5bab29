"""Save and restore problems of a module's last layer: the inputs of the layer are saved as the training inputs."""

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
from vhat.store.match_model import Supplied
from vhat.store.torch import check_tensors, describe_module, model_name, module_of, with_tensors

__all__ = ["describe", "input_arrays", "inputs", "model_name", "move", "parameters", "rebuild"]


def describe(problem: Problem) -> Document:
    """Describe the module, the form of its inputs, and a few rows of inputs on which the restored module is probed."""
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


def parameters(problem: Problem) -> dict[str, np.ndarray]:
    """Return the parameters of the layer by name."""
    parts = _autodiff(problem).base.model.state.split(problem.theta)
    return {name: np.asarray(value.detach().numpy(force=True)) for name, value in parts.items()}


def inputs(problem: Problem) -> np.ndarray:
    """Return the inputs of the layer, shape (n, width of the layer)."""
    layer_inputs: np.ndarray = problem.X[0]
    return layer_inputs


def input_arrays(problem: Problem) -> list[np.ndarray]:
    """Refuse, because the training inputs are not part of the problem and have no checksum here.

    Raises:
        StoreError: Always.
    """
    del problem
    raise StoreError(
        'a model of parameters="last" holds the inputs of its last layer and not the training inputs: save it with '
        'data="copy".'
    )


def rebuild(saved: Document, params: dict[str, np.ndarray], X: np.ndarray, y: Any, supplied: Supplied) -> Problem:
    """Build the problem of the last layer of a copy of the module with the saved tensors in it.

    Args:
        saved: The document. Its entries ``model``, ``weight_decay`` and ``sample_weight`` are used.
        params: The result of :func:`parameters`.
        X: The inputs of the layer.
        y: Training responses.
        supplied: The caller's module and options.
    """
    model = saved["model"]
    module = module_of(model, supplied)
    state, _ = read_state(module, tuple(params))
    check_tensors(state, model, params)
    layout = Layout(model["kind"], model["names"], model["features"], model["floating"], model["columns"])
    sample = tuple(torch.from_numpy(part).to(state.device) for part in model["sample"])
    copied = with_tensors(module, {**params, **model["fixed"]}, state.device)
    output = supplied.output_for(model.get("output", {}))
    found = make_head(copied, layout, sample, supplied.loss_for(model["loss"]), model["target_key"], output)
    found_state = found.base.model.state
    if found_state.names != tuple(params):
        raise StoreError(
            f"the last layer of the module given is {found_state.names}, of the one saved {tuple(params)}."
        )
    base_model = replace(found.base.model, state=replace(found_state, dtype=model["dtype"]))
    autodiff = replace(found, base=replace(found.base, model=base_model))
    shape = (len(X),) if autodiff.squeeze else (len(X), len(autodiff.head.mixing))
    return Problem(
        autodiff=autodiff,
        theta=autodiff.theta,
        decay=autodiff.arrays.native(saved["weight_decay"]),
        X=(X,),
        targets=check_targets(y, shape),
        weights=saved["sample_weight"],
        memory=cast(int, supplied.memory),
    )


def move(problem: Problem, to: dict[str, np.ndarray]) -> Problem:
    """Return the problem at other saved parameters."""
    names = _autodiff(problem).base.model.state.names
    return problem.at(np.concatenate([np.ravel(to[name]) for name in names]))
