"""Run the command line by ``python -m vhat.cli``, the same as ``vhat``."""

from __future__ import annotations

from vhat.cli import app

if __name__ == "__main__":
    app(prog_name="vhat")
