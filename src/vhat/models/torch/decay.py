"""Weight decay by the names of a module's parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from vhat.checks import as_numbers, check_nonnegative
from vhat.errors import InputError
from vhat.models.selection import did_you_mean, listed, under
from vhat.models.torch.arrays import plain, to_array
from vhat.models.torch.state import State

__all__ = ["decay_of"]


def decay_of(weight_decay: Any, state: State) -> Any:
    """Return the diagonal lam in the order of the flat parameters, (p,).

    Trained parameters that a mapping does not name have no decay, as in the parameter groups of an optimiser. Entries
    for fixed parameters have no effect, because their penalty is a constant.

    Raises:
        InputError: For names that the module does not have, and for values that are not valid decays.
    """
    if isinstance(weight_decay, Mapping):
        weight_decay = {str(path): value for path, value in weight_decay.items()}
        _refuse_unknown(weight_decay, state)
    else:
        weight_decay = {"": as_numbers("weight_decay", plain(weight_decay))}  # the empty path matches every name
    parts = []
    checked: dict[str, np.ndarray] = {}
    for name, shape in zip(state.names, state.shapes, strict=True):
        # The longest matching path applies: a parameter's own name before its innermost submodule.
        paths = [path for path in weight_decay if path == "" or under(name, path, ".")]
        path = max(paths, key=len, default="")
        if path not in checked:
            checked[path] = as_numbers(f"weight_decay of {name!r}", plain(weight_decay.get(path, 0.0)))
            check_nonnegative(f"weight_decay of {name!r}", checked[path])
        value = checked[path]
        if name in state.slots and value.shape == tuple(state.slots[name].base.shape):
            value = value[to_array(state.slots[name].rows)]  # the decay of the trained rows
        if value.shape not in ((), shape):
            raise InputError(f"weight_decay of {name!r} has shape {value.shape}; give a number or shape {shape}.")
        parts.append(np.broadcast_to(value, shape).reshape(-1))
    return torch.tensor(np.concatenate(parts), device=state.device)


def _refuse_unknown(weight_decay: Mapping[str, Any], state: State) -> None:
    """Raise for names that the module does not have, and for a mapping without any trained parameter."""
    own = (*state.names, *state.frozen)
    for path in weight_decay:
        if not any(under(name, path, ".") for name in own):
            raise InputError(
                f"weight_decay names {path!r}, which the module does not have (second names of tied parameters do not "
                f"count).{did_you_mean(path, own, '.')} It has {listed(own)}."
            )
    if not any(under(name, path, ".") for path in weight_decay for name in state.names):
        raise InputError(
            f"weight_decay names no parameter that is trained: {listed(state.names)}. Give theirs, or the number 0 for "
            "no decay."
        )
