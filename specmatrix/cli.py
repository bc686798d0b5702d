"""The command line: a table of commands, each implemented by a function in the module of its feature; its standard
streams, and wrong usage in sentences.

Exit status: 0 on success, 1 if something is red, 2 for invalid input (one error line on stderr), 130 after Ctrl-C,
141 if the reader closed stdout, 143 after SIGTERM.
"""

from __future__ import annotations

import errno
import inspect
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import cache, wraps
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, Final, cast, get_origin

import msgspec
import typer
from typer._click.shell_completion import CompletionItem
from typer.core import TyperCommand, TyperGroup, TyperOption

from specmatrix import __version__
from specmatrix.errors import EngineError, nearest, shown, text_of
from specmatrix.extras import missing_extra
from specmatrix.plain_text import PlainStream
from specmatrix.reports.schema import ReportError
from specmatrix.stopping import Stopped, stoppable

# Errors of writing to stdout: a full disk, a quota, a file size limit, a closed pipe, or a closed terminal.
UNWRITABLE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EPIPE, errno.EIO)
# Resource limits of the system or user.
EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)
STREAMS: Final = {"stdin": "r", "stdout": "w", "stderr": "w"}


def empty_word(words: Sequence[str]) -> str:
    """A name for the first empty argument, "" if there is none: an empty path would mean the current folder."""
    for before, word in zip(("", *words), words, strict=False):
        if word.startswith("--") and word.endswith("="):
            return text_of(word[:-1])
        if not word:
            return text_of(before) if before.startswith("--") else "an argument"
    return ""


@contextmanager
def open_streams() -> Iterator[None]:
    """Open the null device for each closed standard stream, because the next opened file would get its descriptor.

    Within the context stdout and stderr are PlainStreams, and characters outside the locale's encoding are escaped.
    """
    for name, mode in STREAMS.items():
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    with redirect_stdout(PlainStream(sys.stdout)), redirect_stderr(PlainStream(sys.stderr)):
        yield


def failed(error: OSError) -> int:
    """Report an OSError and return the exit status; re-raise an unexpected one that names no file, as a defect."""
    if error.errno in EXHAUSTED:
        return wrong(f"the system's limits are reached ({error.strerror}); raise them, see `ulimit -a`")
    if error.filename is not None:
        return wrong(f"cannot use {text_of(os.fsdecode(error.filename))}: {error.strerror}")
    if error.errno not in UNWRITABLE:
        raise error
    return unwritten(error)


def unwritten(error: OSError) -> int:
    # Flushing the rest of the buffer would fail again when Python closes stdout.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if error.errno == errno.EPIPE:
        # The status that a shell reports for SIGPIPE, for example in `| head`.
        return 128 + signal.SIGPIPE
    return wrong(f"cannot write the output: {error.strerror}")


def wrong(sentence: str) -> int:
    # If stderr is closed, the exit status still reports it.
    with suppress(OSError):
        print(f"specmatrix: {' '.join(sentence.split())}", file=sys.stderr, flush=True)
    return 2


# The base class of typer's usage errors, which typer itself does not export.
UsageError = cast(type[typer.BadParameter], typer.BadParameter.__mro__[1])


def misuse(error: typer.BadParameter) -> str:
    """Format a usage error: typer's message, the given value, and at most one suggestion."""
    if hasattr(error, "possibilities"):
        unknown: str = getattr(error, "option_name", "")
        close = nearest(unknown.lstrip("-"), [option.lstrip("-") for option in error.possibilities or ()])
        return f"No such option: {unknown}" + (f"; the closest is --{close}" if close else "")
    # typer validates values with pydantic, whose error contains the value.
    value = getattr(error.__cause__, "errors", None)
    got = "" if value is None else f", got {shown(value()[0]['input'])}"
    option = getattr(error, "param", None)
    if error.message and isinstance(option, TyperOption):
        return f"{option.opts[0]}: {error.message.rstrip('.')}{got}"
    return error.format_message().rstrip(".?").replace(". Did you mean ", "; perhaps ")


HELPED: Final[Mapping[str, Any]] = {"help_option_names": ["-h", "--help"]}


class Command(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A command of commands.yaml, which explains its fields."""

    help: str
    function: str = ""
    engine_flags: bool = False
    section: str = ""
    options: Mapping[str, Any] = {}


COMMANDS: Final = msgspec.yaml.decode(Path(__file__).with_name("commands.yaml").read_bytes(), type=dict[str, Command])
# By a parameter's name, where a command has no row of its own.
OPTIONS: Final[dict[str, Any]] = msgspec.yaml.decode(Path(__file__).with_name("options.yaml").read_bytes())


class LoadedCommands(Mapping[str, TyperCommand | TyperGroup]):
    """The commands of a group, imported on access."""

    def __init__(self, word: str = "") -> None:
        names = {name: name.rpartition(" ") for name in COMMANDS}
        self.rows = {last: COMMANDS[name] for name, (first, _, last) in names.items() if first == word}
        self.word = word
        self._loaded: dict[str, TyperCommand | TyperGroup] = {}

    def __getitem__(self, name: str) -> TyperCommand | TyperGroup:
        if name not in self._loaded:
            self._loaded[name] = _loaded(self.rows[name], LoadedCommands(f"{self.word} {name}".strip()))
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


class CommandGroup(TyperGroup):
    """Lists its commands without importing them."""

    commands: Any  # LoadedCommands, where typer declares a mutable mapping

    def format_commands(self, context: object, formatter: Any) -> None:  # noqa: ANN401 - of a private class of typer
        sections: dict[str, list[tuple[str, str]]] = {}
        title = "Commands"
        for name, row in self.commands.rows.items():
            title = row.section or title
            sections.setdefault(title, []).append((name, row.help))
        width = max(map(len, self.commands.rows))
        for head, rows in sections.items():
            with formatter.section(head):
                formatter.write_dl([(name.ljust(width), text) for name, text in rows])

    def shell_complete(self, context: Any, incomplete: str) -> Any:  # noqa: ANN401 - of private classes of typer
        found = super(TyperGroup, self).shell_complete(context, incomplete)
        rows = self.commands.rows.items()
        return [*(CompletionItem(name, help=row.help) for name, row in rows if name.startswith(incomplete)), *found]


class EngineCommand(TyperCommand):
    """A command that also accepts engine flags."""

    def format_epilog(self, context: object, formatter: Any) -> None:  # noqa: ANN401 - of a private class of typer
        with formatter.section("Engine flags"):
            formatter.write_dl(_function("matrix.cli.flags:rows")())


def _loaded(row: Command, behind: LoadedCommands) -> TyperCommand | TyperGroup:
    function = _described(_function(row.function), OPTIONS | dict(row.options)) if row.function else lambda: None
    if behind.rows:
        return _group(function, row.help, behind, alone=bool(row.function))
    app = _app()
    kind = EngineCommand if row.engine_flags else TyperCommand
    settings = {"ignore_unknown_options": row.engine_flags, **HELPED}
    app.command(help=row.help, cls=kind, context_settings=settings)(function)
    return cast(TyperCommand, typer.main.get_command(app))


def _described(function: Any, rows: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any command
    """The function with the settings of `rows` for its parameters."""

    @wraps(function)
    def command(**given: Any) -> Any:  # noqa: ANN401 - as the function
        return function(**given)

    signature = inspect.signature(function, eval_str=True)
    found = [_parameter(one, rows) for one in signature.parameters.values()]
    command.__signature__ = signature.replace(parameters=found)  # type: ignore[attr-defined]
    return command


def _parameter(one: inspect.Parameter, rows: Mapping[str, Any]) -> inspect.Parameter:
    """The parameter with its row; one that typer fills, or that has its settings in its annotation, as it is."""
    if one.annotation is typer.Context or get_origin(one.annotation) is Annotated:
        return one
    name = one.name.strip("_")
    row = rows[name]
    settings = {"help": row} if isinstance(row, str) else dict(row)
    if "callback" in settings:
        settings["callback"] = _function(settings["callback"])
    if settings.pop("argument", False):
        return one.replace(annotation=Annotated[one.annotation, typer.Argument(**settings)])
    # A switch has no `--no-` form.
    flag = settings.pop("flag", f"--{name.replace('_', '-')}" if one.annotation is bool or name != one.name else None)
    return one.replace(annotation=Annotated[one.annotation, typer.Option(*filter(None, [flag]), **settings)])


def _group(function: Any, text: str, commands: LoadedCommands, alone: bool = False) -> CommandGroup:  # noqa: ANN401
    """alone: the group is also a command by itself."""
    app = _app(completion=commands.word == "")
    app.callback(cls=CommandGroup, help=text, invoke_without_command=alone, context_settings=HELPED)(function)
    group = cast(CommandGroup, typer.main.get_command(app))
    group.commands = commands
    return group


def _app(completion: bool = False) -> typer.Typer:
    return typer.Typer(add_completion=completion, rich_markup_mode=None)


def _function(path: str) -> Any:  # noqa: ANN401 - any command
    module, _, name = path.partition(":")
    return getattr(import_module(f"specmatrix.{module}"), name)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"specmatrix {__version__}")
        raise typer.Exit


def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None: ...


@cache
def command_line() -> CommandGroup:
    """The root group of all commands."""
    text = "A generated test matrix for speculative decoding: run cells, report the results, compare two runs."
    return _group(_options, text, LoadedCommands())


@open_streams()
def main(words: Sequence[str] | None = None) -> int:
    """Run the command line `words` (by default that of this process) and return its exit status."""
    given = list(sys.argv[1:] if words is None else words)
    if empty := empty_word(given):
        return wrong(f"{empty} is empty, perhaps an unset shell variable; give a value or omit it")
    path = max((own for own in map(str.split, COMMANDS) if given[: len(own)] == own), key=len, default=[])
    if given == path and not (path and COMMANDS[" ".join(path)].function):
        given.append("--help")
    try:
        with stoppable():
            status = command_line()(args=given, prog_name="specmatrix", standalone_mode=False)
        sys.stdout.flush()
    except (EngineError, ReportError) as error:
        return wrong(str(error))
    except UsageError as error:
        return wrong(f"{misuse(error)}; see `{' '.join(('specmatrix', *path))} --help`")
    except ModuleNotFoundError as error:
        if (sentence := missing_extra(error)) is None:
            raise
        return wrong(sentence)
    except MemoryError:
        return wrong("memory is exhausted; free some, or raise the limit, see `ulimit -a`")
    except OSError as error:
        return failed(error)
    except SystemExit as end:
        # typer exits with 1 if the reader closed stdout, but status 1 means that something is red.
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        return unwritten(end.__context__)
    except Stopped as stop:
        with suppress(OSError):
            print(stop, file=sys.stderr, flush=True)
        return stop.status
    return int(status or 0)
