"""``vhat study``, whose commands live with the study."""

from __future__ import annotations

from vhat.cli.application import app
from vhat.study.commands import app as study

app.add_typer(study, name="study", epilog="Example: vhat study table1 --sizes 100 --trials 1")
