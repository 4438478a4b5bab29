"""Search for the way in which a module takes its inputs, by trying the possible calls."""

from __future__ import annotations

import inspect
from typing import Any

from vhat.errors import ModelError
from vhat.models.torch.describe import describe
from vhat.models.torch.inputs import Layout, Rows
from vhat.models.torch.model import Convention, arguments, call

__all__ = ["choose_convention"]


def choose_convention(module: Any, tensors: dict[str, Any], layout: Layout, rows: Rows) -> tuple[Convention, Any]:
    """Return the first convention with which the call succeeds, and the output of that call for these rows.

    Raises:
        ModelError: When every call fails.
    """
    candidates = _conventions(module, layout)
    errors: list[Exception] = []
    for convention in candidates:
        args, kwargs = arguments(layout, convention, rows)
        try:
            inspect.signature(module.forward).bind(*args, **kwargs)
            return convention, call(module, tensors, layout, convention, rows)
        except Exception as error:
            errors.append(error)
    if layout.kind == "one":
        calls = "module(X)"
    else:
        forms = {"positional": "module(*inputs)", "together": "module(inputs)", "keywords": "module(**inputs)"}
        calls = " and ".join(forms[convention] for convention in candidates)
    # A TypeError is probably that of a call with wrong arguments; another error is that of the module.
    cause = next((error for error in errors if not isinstance(error, TypeError)), errors[-1])
    raise ModelError(
        f"calling {calls} in float64 failed: {describe(cause)}{_about_inputs(module, layout, rows)}"
    ) from cause


def _conventions(module: Any, layout: Layout) -> list[Convention]:
    """Return the conventions to try, in order.

    If all keys of a dict are named parameters of ``forward``, they are passed by name. If only ``**kwargs`` would take
    them, the module may also take the dict as one argument.
    """
    if layout.kind == "one":
        return ["positional"]
    if layout.kind == "tuple":
        return ["positional", "together"]
    if set(layout.names) <= set(_keywords(module)):
        return ["keywords"]
    if len(layout.names) == 1:
        return ["keywords", "together", "positional"]
    return ["keywords", "together"]


def _keywords(module: Any) -> list[str]:
    """Return the parameters of ``forward`` that can be given by name."""
    parameters = inspect.signature(module.forward).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [each.name for each in parameters if each.kind in kinds]


def _about_inputs(module: Any, layout: Layout, rows: Rows) -> str:
    """Return a remark on the shapes of the inputs, or on their keys and the parameters of ``forward``."""
    if layout.kind != "dict":
        shapes = " and ".join(str(tuple(each.shape[1:])) for each in rows)
        return f" (A row of X has shape {shapes}. Give X in the shape with which the module was trained.)"
    taken = _keywords(module)
    unknown = [name for name in layout.names if name not in taken]
    if not unknown:
        return f" (X is a dict whose keys are parameters of forward, so it was called as forward(**X): {taken}.)"
    return (
        f" (X has the keys {list(layout.names)} and forward takes {taken}. Leave out {unknown}, name the responses by "
        "target_key=, or give a dict with the names of forward's parameters.)"
    )
