"""The command ``vhat study``. Its subcommands are in :mod:`vhat.study.commands`."""

from __future__ import annotations

from vhat.cli.application import Command, Group, app
from vhat.study.commands import app as study

for _each in study.registered_commands:
    _each.cls = Command
app.add_typer(study, name="study", cls=Group, epilog="Example: vhat study table1 --sizes 100 --trials 1")
