"""What a torch error means for a module, and what to do."""

from __future__ import annotations

__all__ = ["describe"]

_REMEDIES = (
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
        "The module holds an operation without a second derivative: replace it by a differentiable one.",
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


def describe(error: Exception) -> str:
    """Say what a torch error means for the module, and what to do, with the error's own first line."""
    text = str(error).strip()
    first = text.splitlines()[0][:300] if text else "no message"
    remedy = next((say for signs, say in _REMEDIES if any(sign in text.lower() for sign in signs)), "")
    return f"{type(error).__name__}: {first} {remedy}".strip()
