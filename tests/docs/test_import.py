"""Importing vhat is light, and no call changes the state of a framework."""

from __future__ import annotations

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vhat


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_import_loads_neither_torch_nor_jax():
    loaded = run("import sys, vhat; print([m for m in ('torch', 'jax', 'scipy', 'pandas') if m in sys.modules])")
    assert loaded.strip() == "[]"


def test_the_numpy_front_end_loads_neither_torch_nor_jax():
    code = (
        "import sys, numpy as np, vhat\n"
        "x = np.linspace(0, 1, 20); y = 1 + 2 * x + 0.1 * np.sin(50 * x)\n"
        "fitted = vhat.from_curve_fit(lambda x, a, b: a + b * x, np.polyfit(x, y, 1)[::-1], x, y)\n"
        "fitted.interval([0.5])\n"
        "print([m for m in ('torch', 'jax') if m in sys.modules])"
    )
    assert run(code).strip() == "[]"


def test_import_takes_at_most_three_times_as_long_as_numpy():
    """The best of five, in separate processes: what is compared is work, not the machine's mood."""
    timer = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"
    best = {name: min(float(run(timer.format(name))) for _ in range(5)) for name in ("numpy", "vhat")}
    assert best["vhat"] <= 3 * best["numpy"]


def test_every_public_name_exists():
    for name in vhat.__all__:
        assert getattr(vhat, name) is not None
    assert set(vhat.__all__) <= set(dir(vhat))
    with pytest.raises(AttributeError, match="nothing"):
        _ = vhat.nothing


def test_the_x64_flag_is_unchanged_after_calls_and_after_errors():
    assert not jax.config.jax_enable_x64
    x = np.linspace(-1, 1, 10)[:, None]
    fitted = vhat.from_jax(
        lambda q, Z: Z @ q, np.ones(1), x, 1.5 * x[:, 0] + 0.1 * np.cos(9 * x[:, 0]), weight_decay=0.1
    )
    fitted = fitted.polish()
    fitted.interval(x)
    fitted.audit()
    assert jnp.ones(1).dtype == jnp.float32
    with pytest.raises(vhat.InputError):
        fitted.interval(np.ones((3, 7)))
    with pytest.raises(vhat.ModelError):
        vhat.from_jax(lambda q, Z: Z @ q[:0], np.ones(1), x, x[:, 0], weight_decay=0.1)
    assert not jax.config.jax_enable_x64
    assert jnp.ones(1).dtype == jnp.float32
