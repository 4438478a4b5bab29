"""The program behind all commands: errors, warnings and exit codes, and the registration of a command.

========  ==========================================================================================
exit code meaning
========  ==========================================================================================
0         done
1         unexpected error of vhat or of the system; ``--debug`` shows the traceback
2         the input cannot be used: options, files, columns, values, or the output file
3         the model cannot answer: no minimum, no noise estimate, a line of the audit that fails, rows
          without an interval
130       stopped by Ctrl-C; no partial file is left
141       the reader of standard output has closed it (``| head -1``); no message is printed
143       ended by SIGTERM (129 by SIGHUP); no partial file is left
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
    STOPPED,
    drop_failed_output,
    drop_output,
    explain_output_errors,
    fill_closed_streams,
    interrupts_as_exceptions,
    interrupts_as_exits,
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

UNEXPECTED = 1
CANNOT_USE = 2
CANNOT_ANSWER = 3
_MAX_NAME = 300
"""File names longer than this are cut in messages, in characters. No file system allows so many."""
_SHOWN_NAME = 60
"""Characters that are shown of a name that is cut."""
F = TypeVar("F", bound=Callable[..., Any])


class _Switches:
    """Mix-in that shows options without a value correctly in the help."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, without a value name for switches: Typer would show ``--json <bool>``."""
        found: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for each in found:
            if getattr(each, "is_flag", False) and each.metavar is None:
                each.metavar = ""
        return found


class Command(_Switches, TyperCommand):
    """A command whose help shows switches without the name of a value."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command. From here on, Ctrl-C raises KeyboardInterrupt, so that temporary files are removed."""
        interrupts_as_exceptions()
        return super().invoke(ctx)


class Group(_Switches, TyperGroup):
    """A group of commands whose help shows switches without the name of a value."""


class _Sentences(Group):
    """A group of commands that turns every error into a sentence on standard error and an exit code."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program, with a standard output that can encode every character."""
        write_utf8()
        return super().main(*args, **kwargs)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line, and accept ``--debug`` anywhere: users append it to a command that has failed."""
        end = args.index("--") if "--" in args else len(args)  # what follows "--" are arguments, not options
        options, arguments = args[:end], args[end:]
        debug = "--debug" in options
        if debug:
            options = ["--debug", *(each for each in options if each != "--debug")]
        try:
            return super().parse_args(ctx, [*options, *arguments])
        except Exception as error:
            _exit_on_usage_error(error, debug=debug)
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run the command. With ``--debug``, errors keep their traceback."""
        with warnings.catch_warnings():
            warnings.simplefilter("always", VhatWarning)
            warnings.showwarning = _show_once()
            try:
                result = super().invoke(ctx)
                if sys.stdout is not None:
                    with explain_output_errors():  # flushes what is still in the buffer
                        pass
                return result
            except typer.Exit:
                raise
            except BrokenPipeError:
                drop_output()
                raise typer.Exit(CLOSED_PIPE) from None
            except (Exception, KeyboardInterrupt) as error:
                debug = bool(ctx.params.get("debug"))
                _exit_on_usage_error(error, debug=debug)
                if debug or hasattr(error, "exit_code"):
                    raise
                print(f"vhat: {_sentence(error)}", file=sys.stderr)
                drop_failed_output()
                raise typer.Exit(_exit_code(error)) from None


def _exit_on_usage_error(error: BaseException, *, debug: bool) -> None:
    """Print an error of the command line itself as one sentence and exit; return if the error is of another kind.

    A bare ``vhat`` raises such an error too. It prints the help by itself.
    """
    if debug or not hasattr(error, "format_message") or type(error).__name__ == "NoArgsIsHelpError":
        return
    text = error.format_message().strip()
    called = getattr(getattr(error, "ctx", None), "command_path", "vhat")
    sentence = text if text.endswith((".", "?", "!")) else f"{text}."
    sentence = sentence[:1].lower() + sentence[1:]
    print(f"vhat: {sentence} {called} --help lists the options.", file=sys.stderr)
    raise typer.Exit(CANNOT_USE) from None


def _sentence(error: BaseException) -> str:  # noqa: PLR0911  (one return per kind of error)
    """Return an error as one sentence for the user."""
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
    """Return a file name, cut if it is longer than any that exists."""
    if len(name) <= _MAX_NAME:
        return name
    return f"{name[:_SHOWN_NAME]}... ({len(name):,} characters)"


def _exit_code(error: BaseException) -> int:
    """Return the exit code of an error, by the table of this module."""
    if isinstance(error, KeyboardInterrupt):
        return STOPPED
    if isinstance(error, InputError | StoreError | MissingPackage | UnicodeEncodeError):
        return CANNOT_USE
    if isinstance(error, OSError) and error.filename is not None:
        return CANNOT_USE
    return CANNOT_ANSWER if isinstance(error, VhatError) else UNEXPECTED


def _show_once() -> Callable[..., None]:
    """Return a function for ``warnings.showwarning`` that prints each warning of vhat once, and no warning of others.

    A user of the command line cannot act on a warning of another library.
    """
    shown: set[str] = set()

    def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        text = f"vhat: warning: {in_options(str(message))}"
        if issubclass(category, VhatWarning) and text not in shown:
            shown.add(text)
            print(text, file=sys.stderr)

    return show


class _Program(typer.Typer):
    """The program as a shell starts it."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program, with handlers for signals and closed streams."""
        fill_closed_streams()
        try:
            with signals_as_exits(), interrupts_as_exits():
                return super().__call__(*args, **kwargs)
        except KeyboardInterrupt:  # Ctrl-C before a command runs, or while another error is handled
            print("vhat: stopped.", file=sys.stderr)
            sys.exit(STOPPED)


app = _Program(
    cls=_Sentences,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Confidence intervals for the predictions of a regression model, with checks of what they assume.",
    epilog="Start with: vhat fit data.csv --target price; vhat predict model new.csv",
)


def _version(wanted: bool) -> None:
    """Print the version and exit."""
    if wanted:
        from importlib.metadata import version

        print(f"vhat {version('vhat')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; may stand anywhere on the line.")
    ] = False,
) -> None:
    """Declare the options of the whole program. Their callbacks and the group handle them."""


def command(example: str) -> Callable[[F], F]:
    """Return a decorator that registers a function as a command of the same name.

    Args:
        example: A command line that a user can copy, shown at the end of the help.
    """

    def register(function: F) -> F:
        app.command(cls=Command, help=_paragraphs(function), epilog=f"Example: {example}")(function)
        return function

    return register


def _paragraphs(function: Callable[..., Any]) -> str:
    """Return the docstring with one line per paragraph, so that the terminal wraps it."""
    return "\n\n".join(" ".join(part.split()) for part in cleandoc(function.__doc__ or "").split("\n\n"))
