"""The command `kfp-mindspore`; its subcommands are imported on use."""

from __future__ import annotations

import errno
import importlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from kfp_mindspore import __version__
from kfp_mindspore.errors import KfpMindSporeError, UserError, get_closest
from kfp_mindspore.files import get_home
from kfp_mindspore.settings import DEBUG_VARIABLE, HOME_VARIABLE, is_debug

# Subcommand summaries, so that `kfp-mindspore --help` imports none of them.
COMMANDS = {
    "demo": "Train, export, gate, serve and query LeNet on digits, on this machine.",
    "init": "Create a runnable project.",
    "run": "Run a pipeline on this machine.",
    "runs": "List, open, compare and remove local runs of pipelines.",
    "sweep": "Run many trials of one training, and show the best.",
    "pipeline": "List, compile and check pipelines; run them on Kubeflow Pipelines.",
    "job": "Submit, follow and delete training jobs (MSJob).",
    "dataset": "Load data into a dataset directory, and inspect one.",
    "model": "Export, inspect and verify model bundles (MindIR); predict with them.",
    "lm": "Import, fine-tune, evaluate, export and route language models.",
    "vision": "Import image models; classify by words.",
    "trainer": "Write the runtimes with which Kubeflow Trainer trains MindSpore.",
    "devices": "Show which devices MindSpore can use here, and why not the others.",
    "image": "Build images from notebooks, scripts and folders; build the runtime image.",
    "serve": "Serve a model bundle over HTTP and gRPC.",
    "service": "Create, list, describe, promote, roll back and stop services.",
    "operator": "Install and run the MSJob controller on Kubernetes.",
}
INTERRUPTED_EXIT_CODE = 130
_UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)


class LazyGroup(click.Group):
    """A group with a summary table that imports `kfp_mindspore.cli.<name>` on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the subcommand names."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a subcommand; return None if it does not exist."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"kfp_mindspore.cli.{cmd_name}")
        command = getattr(module, cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a subcommand; name the closest one if it does not exist."""
        close = get_closest(args[0], COMMANDS)
        if close and args[0] not in COMMANDS and not ctx.resilient_parsing:
            raise click.UsageError(f"No such command {args[0]!r}. Did you mean {close!r}?", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the summaries without importing the subcommands."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _print_version(context: click.Context, _: click.Parameter, is_wanted: bool) -> None:
    if not is_wanted or context.resilient_parsing:
        return
    from importlib import metadata, resources

    commit = resources.files("kfp_mindspore").joinpath("commit.txt").read_text(encoding="utf-8").strip()
    # `git archive` writes the commit; a checkout has the format.
    source = "a checkout" if commit.startswith("$") else f"commit {commit}"
    try:
        mindspore = f"MindSpore {metadata.version('mindspore')}"
    except metadata.PackageNotFoundError:
        mindspore = "without MindSpore"
    click.echo(f"kfp-mindspore {__version__} ({source}, {mindspore})")
    context.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    epilog="Example: kfp-mindspore demo",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
@click.option("--debug", is_flag=True, envvar=DEBUG_VARIABLE, help="Show a stack trace with an error.")
def cli(debug: bool) -> None:
    """Take MindSpore from a notebook to a served model, on this machine or on Kubeflow."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its exit code.

    An error is printed on standard error, as `Error: …` or, for a command line with `--json`, as a JSON line,
    `{"error": …}`. This package's errors have a stack trace only with `--debug`.
    Exit codes: 2 for a user error, 1 for a failure, 3 for an unmet gate, 130 for Ctrl-C.

    Args:
        arguments: Arguments after the program's name; default `sys.argv[1:]`.
    """
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line like `main` and return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug, as_json = _is_debug(words), _is_json(words)
    try:
        result: Any = cli.main(args=words, prog_name="kfp-mindspore", standalone_mode=False)
        sys.stdout.flush()
    except KfpMindSporeError as error:
        if debug:
            raise
        if as_json:
            return _print_json_error(type(error).__name__, error.exit_code, error.message, error.hint, error.log)
        click.echo(f"Error: {error}", err=True)
        return error.exit_code
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        hint = _get_parameter_hint(error, words) if isinstance(error, click.NoSuchOption) else ""
        if as_json:
            return _print_json_error(type(error).__name__, error.exit_code, error.format_message(), hint)
        error.show()
        if hint:
            click.echo(hint, err=True)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt) as error:
        # click raises Abort from the KeyboardInterrupt, whose message names an interrupted run's files.
        details = str(error.__cause__ or error)
        if as_json:
            return _print_json_error("Interrupted", INTERRUPTED_EXIT_CODE, "Interrupted.", details)
        click.echo(f"\nInterrupted.\n{details}".rstrip(), err=True)
        return INTERRUPTED_EXIT_CODE
    except BrokenPipeError:
        # A pipe's reader (`… | head`) has closed it; without the redirect, the flush at exit fails again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        if debug:
            raise
        failure = KfpMindSporeError(str(error))
        if error.errno in _UNWRITABLE and Path(str(error.filename)).is_relative_to(get_home()):
            failure = UserError(
                f"{error.filename}: cannot be written: {error.strerror}",
                hint=f"Set {HOME_VARIABLE} to a directory that you can write to.",
            )
        if as_json:
            return _print_json_error(type(error).__name__, failure.exit_code, failure.message, failure.hint)
        click.echo(f"Error: {failure}", err=True)
        return failure.exit_code
    return result if isinstance(result, int) else 0


def _get_parameter_hint(error: click.NoSuchOption, words: Sequence[str]) -> str:
    """Return how to pass a pipeline's argument, for a command with `-p` that was given `--name value`."""
    parameters = error.ctx.command.params if error.ctx is not None else []
    if error.possibilities or not any("-p" in parameter.opts for parameter in parameters):
        return ""
    name = error.option_name.lstrip("-")
    index = next((index for index, word in enumerate(words) if word.partition("=")[0] == error.option_name), -1)
    _, equals, value = words[index].partition("=") if index >= 0 else ("", "", "")
    if not equals and 0 <= index < len(words) - 1:
        value = words[index + 1]
    return f"An argument of the pipeline: -p {name.replace('-', '_')}={value or 'VALUE'}"


def _is_json(words: Sequence[str]) -> bool:
    """Return whether `--json` is given, also on a command line that cannot be parsed."""
    return "--json" in words[: words.index("--") if "--" in words else None]


def _print_json_error(kind: str, exit_code: int, message: str, hint: str = "", log: Sequence[str] = ()) -> int:
    """Print an error as one JSON line on standard error, and return the exit code."""
    fields = {"type": kind, "message": message, "hint": hint, "log": [*log], "exit_code": exit_code}
    click.echo(json.dumps({"error": fields}), err=True)
    return exit_code


def _is_debug(words: Sequence[str]) -> bool:
    """Return whether `--debug` precedes the subcommand or the environment enables it."""
    for word in words:
        if not word.startswith("-"):
            break
        if word == "--debug":
            return True
    return is_debug()


if __name__ == "__main__":
    main()
