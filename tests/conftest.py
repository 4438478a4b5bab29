"""Test-wide settings: compiled programs are shared between tests and between processes."""

from __future__ import annotations

import tempfile
from pathlib import Path

import jax
import matplotlib as mpl

mpl.use("Agg")
jax.config.update("jax_compilation_cache_dir", str(Path(tempfile.gettempdir()) / "vhat-test-xla"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
