"""What all commands share: one place for errors, warnings and exit codes, and how a command is registered.

========  ==========================================================================================
exit code meaning
========  ==========================================================================================
0         done
1         unexpected: a fault of vhat, or of the system; ``--debug`` shows where
2         what was given cannot be used: options, files, columns, values, a place to write to
3         the model cannot answer: no minimum, no noise estimate, a line of the audit that fails, rows
          without an interval
130       stopped by Ctrl-C; nothing half-finished is left behind
141       the reader of standard output has gone (``| head -1``), which is not worth a word
143       ended by SIGTERM (129 by SIGHUP), with nothing half-finished left behind either
========  ==========================================================================================
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from inspect import cleandoc
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from vhat.cli.advice import in_options
from vhat.cli.orderly_end import (
    CLOSED_PIPE,
    drop_failed_output,
    drop_output,
    occupied_streams,
    output_in_words,
    signals_as_exits,
)
from vhat.cli.terminal import write_utf8
from vhat.errors import (
    InputError,
    Interrupted,
    MissingPackage,
    StoreError,
    VhatError,
    VhatWarning,
)

__all__ = ["CANNOT_ANSWER", "CANNOT_USE", "STOPPED", "UNEXPECTED", "Command", "Group", "app", "command"]

UNEXPECTED, CANNOT_USE, CANNOT_ANSWER, STOPPED = 1, 2, 3, 130
F = TypeVar("F", bound=Callable[..., Any])


class _Switches:
    """Options that take no value are shown without the name of one."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters; the help would call a switch ``<bool>``, as if a word had to follow it."""
        found: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for each in found:
            if getattr(each, "is_flag", False) and each.metavar is None:
                each.metavar = ""
        return found


class Command(_Switches, TyperCommand):
    """A command whose help has no names of values that there are not."""


class Group(_Switches, TyperGroup):
    """A group of commands with such a help."""


class _Sentences(Group):
    """A group of commands in which every error is a sentence on standard error and an exit code."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program, help included, with an output that takes every character."""
        write_utf8()
        return super().main(*args, **kwargs)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take ``--debug`` wherever it stands: it is added when a line has already failed."""
        ours, rest = (args[: args.index("--")], args[args.index("--") :]) if "--" in args else (args, [])
        moved = ["--debug"] if "--debug" in ours else []
        try:
            return super().parse_args(ctx, [*moved, *(each for each in ours if each != "--debug"), *rest])
        except Exception as error:
            _say_usage(error, debug=bool(moved))
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run the command; let errors through untouched under ``--debug``."""
        with warnings.catch_warnings():
            warnings.simplefilter("always", VhatWarning)
            warnings.showwarning = _once()
            try:
                found = super().invoke(ctx)
                if sys.stdout is not None:
                    with output_in_words():  # what is still in the buffer
                        pass
                return found
            except typer.Exit:
                raise
            except BrokenPipeError:
                drop_output()
                raise typer.Exit(CLOSED_PIPE) from None
            except (Exception, KeyboardInterrupt) as error:
                debug = bool(ctx.params.get("debug"))
                _say_usage(error, debug=debug)
                if debug or hasattr(error, "exit_code"):
                    raise
                print(f"vhat: {_sentence(error)}", file=sys.stderr)
                drop_failed_output()
                raise typer.Exit(_exit_code(error)) from None


def _say_usage(error: BaseException, *, debug: bool) -> None:
    """Say what is wrong with the line that was typed as every other error is said, and leave; else return.

    A bare ``vhat`` counts as such an error, and what it has to say is the help: that shows itself.
    """
    if debug or not hasattr(error, "format_message") or type(error).__name__ == "NoArgsIsHelpError":
        return
    text = error.format_message().strip()
    where = getattr(getattr(error, "ctx", None), "command_path", "vhat")
    ended = text if text.endswith((".", "?", "!")) else f"{text}."
    print(f"vhat: {ended[:1].lower()}{ended[1:]} {where} --help shows what can be given.", file=sys.stderr)
    raise typer.Exit(CANNOT_USE) from None


def _sentence(error: BaseException) -> str:  # noqa: PLR0911  (one line a kind of error)
    if isinstance(error, VhatError):
        return in_options(str(error))
    if isinstance(error, Interrupted):
        return f"stopped. {str(error).split('. ', maxsplit=1)[0]}."
    if isinstance(error, KeyboardInterrupt):
        return "stopped."
    if isinstance(error, MemoryError):
        return "the memory does not suffice. Give fewer rows to train on, or a smaller network (--hidden)."
    if isinstance(error, OSError) and error.filename is not None:
        return f"the system refuses {shortened(os.fsdecode(error.filename))}: {error.strerror}. Give another name."
    if isinstance(error, UnicodeEncodeError):
        return f"{error.object[error.start : error.end]!r} is not text in UTF-8. Give text in UTF-8."
    text = str(error).strip().split("\n", maxsplit=1)[0]
    return f"unexpected {type(error).__name__}: {text} (--debug shows where it comes from.)"


def shortened(name: str) -> str:
    """Return a name of a file, cut where it is longer than any that there can be."""
    return name if len(name) <= _LONGEST_NAME else f"{name[:60]}... ({len(name):,} characters)"


_LONGEST_NAME = 300


def _exit_code(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt):
        return STOPPED
    if isinstance(error, InputError | StoreError | MissingPackage | UnicodeEncodeError):
        return CANNOT_USE
    if isinstance(error, OSError) and error.filename is not None:
        return CANNOT_USE
    return CANNOT_ANSWER if isinstance(error, VhatError) else UNEXPECTED


def _once() -> Callable[..., None]:
    """Show each warning of the library as a sentence, once; those of others, which no user can act on, not at all."""
    said: set[str] = set()

    def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        text = f"vhat: warning: {in_options(str(message))}"
        if issubclass(category, VhatWarning) and text not in said:
            said.add(text)
            print(text, file=sys.stderr)

    return show


class _Program(typer.Typer):
    """The program as a shell starts it."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it, with signals and closed streams cared for."""
        occupied_streams()
        try:
            with signals_as_exits():
                return super().__call__(*args, **kwargs)
        except KeyboardInterrupt:  # before a command runs, or while another error is handled
            print("vhat: stopped.", file=sys.stderr)
            sys.exit(STOPPED)


app = _Program(
    cls=_Sentences,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Confidence intervals for the predictions of a regression model, with the evidence that they may be believed.",
    epilog="Start with: vhat fit data.csv --target price; vhat predict model new.csv",
)


def _version(wanted: bool) -> None:
    """Print the version and leave."""
    if wanted:
        from importlib.metadata import version

        print(f"vhat {version('vhat')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error; may stand anywhere.")] = False,
) -> None:
    """Hold the options of every command; their work is done by their callbacks and by the group."""


def command(example: str) -> Callable[[F], F]:
    """Register the function below as a command of its name.

    Args:
        example: A line that a user can copy, shown at the end of its help.
    """

    def register(function: F) -> F:
        app.command(cls=Command, help=_paragraphs(function), epilog=f"Example: {example}")(function)
        return function

    return register


def _paragraphs(function: Callable[..., Any]) -> str:
    """The docstring with the line ends of its paragraphs left to the terminal."""
    return "\n\n".join(" ".join(part.split()) for part in cleandoc(function.__doc__ or "").split("\n\n"))
