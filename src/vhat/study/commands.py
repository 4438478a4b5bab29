"""``vhat study``: one command for each table and figure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    help="Compute the paper's tables and figures, as published and at a minimum. A run that was stopped "
    "goes on where it was; results that are there are kept.",
)

Sizes = Annotated[
    str, typer.Option(metavar="A,B,...", help="Numbers of training points, with commas; the paper's by default.")
]
Trials = Annotated[int, typer.Option(metavar="NUMBER", min=1, help="Draws of the data.")]
Methods = Annotated[
    str, typer.Option(metavar="A,B,...", help="Methods, with commas: proposed, bootstrap, deep-ensemble, wald, ...")
]
Versions = Annotated[
    str, typer.Option(metavar="A,B", help="published, met (at a minimum), penalised (lam inside the loss).")
]
Truths = Annotated[str, typer.Option(metavar="A,B", help="matern, smooth (d = 10 only), or both with a comma.")]
Steps = Annotated[
    int,
    typer.Option(metavar="NUMBER", min=1, help="Training steps; fewer than the paper's are marked on every output."),
]
Out = Annotated[Path, typer.Option(metavar="DIR", help="Directory of the results.")]
EngineName = Annotated[str, typer.Option(metavar="NAME", help="local, dask or ray.")]
Jobs = Annotated[int, typer.Option(metavar="NUMBER", min=1, help="Cells at once, each on one core.")]
Scheduler = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="Address of a Dask scheduler or Ray cluster; none starts one.")
]
Report = Annotated[bool, typer.Option("--report", help="Compute nothing: make outputs from what is there.")]

# Defaults of the options. They repeat constants of vhat.study.cell and vhat.study.experiments, which are imported only
# when a command runs.
_STEPS = 10_000
_OUT = Path("study/results")
_METHODS = "proposed,bootstrap"
_VERSIONS = "published,met"
_TRUTHS = "matern,smooth"

_PAGES = (Path("docs/reproduction.md"), Path("docs/reproduction-tables.md"))
"""Pages that `vhat study page` updates by default."""


def _command(
    experiments: tuple[str, ...], about: str, default_methods: str = _METHODS, default_versions: str = _VERSIONS
) -> Callable[..., None]:
    """Return the command of one or more experiments.

    Args:
        experiments: Names of the experiments.
        about: Help text.
        default_methods: Default of ``--methods``.
        default_versions: Default of ``--versions``.
    """

    def command(
        trials: Trials = 5,
        sizes: Sizes = "",
        methods: Methods = default_methods,
        versions: Versions = default_versions,
        truths: Truths = _TRUTHS,
        steps: Steps = _STEPS,
        out: Out = _OUT,
        engine: EngineName = "local",
        jobs: Jobs = 1,
        scheduler: Scheduler = None,
        report: Report = False,
    ) -> None:
        from vhat.errors import InputError
        from vhat.study.experiments import Plan
        from vhat.study.whole_study import conduct

        def listed(text: str) -> tuple[str, ...]:
            return tuple(part.strip() for part in text.split(",") if part.strip())

        try:
            numbers = tuple(int(part) for part in listed(sizes))
        except ValueError:
            raise InputError(f"--sizes {sizes!r} is not a list such as 100,1000.") from None
        plans = [
            Plan(
                experiment,  # type: ignore[arg-type]
                sizes=numbers,
                trials=trials,
                methods=listed(methods),
                versions=listed(versions),  # type: ignore[arg-type]
                truths=listed(truths),  # type: ignore[arg-type]
                steps=steps,
            )
            for experiment in experiments
        ]
        chosen: Any = engine  # checked by the run
        complete = conduct(
            plans,
            out,
            engine=chosen,
            jobs=jobs,
            scheduler=scheduler,
            compute=not report,
        )
        raise typer.Exit(0 if complete else 1)

    command.__doc__ = about
    return command


for _name, _experiments, _about in (
    (
        "figure1",
        ("figure1",),
        "Bands in one dimension: rows the methods, columns n, one trial. At n = 100 the paper's own iteration "
        "(paper-cg) is computed beside the proposed method.",
    ),
    ("table1", ("table1",), "Coverage, widths and scores in 10 dimensions, beside the published ones."),
    ("table2", ("table2",), "The same in 100 dimensions."),
    ("figure2", ("figure2",), "Coverage against median width over the weight decay, in 10 and 100 dimensions."),
    ("tables", ("table1", "table2"), "Both tables: the small sizes of both before the large ones."),
    ("all", ("table1", "table2", "figure1", "figure2"), "Everything: tables and figure 1, then figure 2 by trials."),
):
    app.command(_name, epilog=f"Example: vhat study {_name} --sizes 100 --trials 1")(_command(_experiments, _about))


app.command("variants", epilog="Example: vhat study variants --trials 1")(
    _command(
        ("variants",),
        "The proposed method at n = 100 by the paper's own iteration, and with lam inside the loss.",
        default_methods="proposed,paper-cg,bootstrap",
        default_versions="published,penalised",
    )
)


@app.command(epilog="Example: vhat study page")
def page(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE]...", help="Pages; their parts between the study's marks are made anew."),
    ] = None,
    out: Out = _OUT,
) -> None:
    """Bring the numbers on the pages about the reproduction up to date."""
    from vhat.study.page import refresh

    for file in files or _PAGES:
        refresh(file, out)
