"""Descriptions of torch errors with a remedy."""

from __future__ import annotations

__all__ = ["describe"]

_REMEDIES: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("inplace", "in-place"),
        "The module works in place on a tensor that autograd needs: write that step out of place (x = x + 1, not "
        "x += 1).",
    ),
    (
        (
            "derivative for",
            "differentiable twice",
            "once_differentiable",
            "double backward",
            "double-backward",
        ),
        "The module contains an operation without a second derivative: replace it by a differentiable one.",
    ),
    (
        ("require grad", "grad_fn", "requires grad", "used in the graph"),
        "The prediction leaves autograd (detach(), numpy(), argmax, rounding, torch.no_grad()): keep it "
        "differentiable from parameters to output.",
    ),
    (
        ("dtype", "scalar type", "same type", "double"),
        "vhat evaluates the module in float64 and it mixes dtypes: let tensors that it makes follow its inputs "
        "(x.new_zeros(...), dtype=x.dtype), register constants as buffers, and give numbers as floats.",
    ),
)
"""Phrases in messages of torch, in lower case, and the remedy. The first match applies."""


def describe(error: Exception) -> str:
    """Return the type and first line of a torch error, with a remedy if its message is a known one."""
    text = str(error).strip()
    first = text.splitlines()[0][:300] if text else "no message"
    return f"{type(error).__name__}: {first} {_remedy(text.lower())}".strip()


def _remedy(message: str) -> str:
    """Return the remedy for a message in lower case, or an empty string."""
    for phrases, remedy in _REMEDIES:
        if any(phrase in message for phrase in phrases):
            return remedy
    return ""
