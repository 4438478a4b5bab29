"""How a module takes its inputs: found by trying."""

from __future__ import annotations

import inspect
from typing import Any

from vhat.errors import ModelError
from vhat.models.torch.describe import describe
from vhat.models.torch.inputs import Layout, Rows
from vhat.models.torch.model import Convention, arguments, call

__all__ = ["choose_convention"]


def choose_convention(module: Any, tensors: dict[str, Any], layout: Layout, rows: Rows) -> tuple[Convention, Any]:
    """Find how the module takes its inputs; return that and its output for these rows.

    Raises:
        ModelError: When no way of calling it works.
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
    tried = {"positional": "module(*inputs)", "together": "module(inputs)", "keywords": "module(**inputs)"}
    ways = " and ".join(tried[convention] for convention in candidates) if layout.kind != "one" else "module(X)"
    telling = next((error for error in errors if not isinstance(error, TypeError)), errors[-1])
    raise ModelError(f"calling {ways} in float64 failed: {describe(telling)}{_about_keys(module, layout)}") from telling


def _conventions(module: Any, layout: Layout) -> list[Convention]:
    """Return the ways of calling the module that are tried, in order.

    A dict whose keys are all named parameters of ``forward`` is meant for them. Keys that only ``**kwargs`` would take
    may be passed on to a module that takes the dict as one argument.
    """
    if layout.kind == "one":
        return ["positional"]
    if layout.kind == "tuple":
        return ["positional", "together"]
    if set(layout.names) <= set(_keywords(module)):
        return ["keywords"]
    found: list[Convention] = ["keywords", "together"]
    return [*found, "positional"] if len(layout.names) == 1 else found


def _keywords(module: Any) -> list[str]:
    """Return the parameters of ``forward`` that can be given by name."""
    parameters = inspect.signature(module.forward).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [each.name for each in parameters if each.kind in kinds]


def _about_keys(module: Any, layout: Layout) -> str:
    """Say which keys of a dict of inputs are no parameters of ``forward``."""
    if layout.kind != "dict":
        return ""
    taken = _keywords(module)
    unknown = [name for name in layout.names if name not in taken]
    if not unknown:
        return f" (X is a dict whose keys are parameters of forward, so it was called as forward(**X): {taken}.)"
    return (
        f" (X has the keys {list(layout.names)} and forward takes {taken}. Leave out {unknown}, name the responses by "
        "target_key=, or give a dict with the names of forward's parameters.)"
    )
