"""The `linnet` command: each subcommand is a module here, imported when it is chosen."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from io import TextIOWrapper
from typing import Any, TextIO

from linnet import __version__
from linnet.diagnostics import LinnetError

# Name -> module with `add_arguments(parser)` and `run(args) -> int`, and one line of help.
COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("linnet.cli.init", "make a package that checks and runs"),
    "check": ("linnet.cli.check", "find every mistake in Linnet source, for all sizes"),
    "lint": ("linnet.cli.lint", "check --strict and fmt --check in one"),
    "fmt": ("linnet.cli.fmt", "write Linnet source in its one style"),
    "explain": ("linnet.cli.explain", "what a code means; which kernels a program gets"),
    "inspect": ("linnet.cli.inspect", "a program's tokens, tree, blocks, parameters, nodes"),
    "diagram": ("linnet.cli.diagram", "an entry's architecture as SVG, TikZ or DOT"),
    "torch": ("linnet.cli.torch", "the PyTorch source that a program becomes"),
    "jax": ("linnet.cli.jax", "the JAX source that a program becomes"),
    "stablehlo": ("linnet.cli.stablehlo", "the StableHLO module that an entry becomes"),
    "onnx": ("linnet.cli.onnx", "the ONNX model that an entry becomes, as text or as a file"),
    "verify": ("linnet.cli.verify", "every entry on every backend, against the reference"),
    "lsp": ("linnet.cli.lsp", "the language server, for editors to start"),
    "run": ("linnet.cli.run", "ask a model of the zoo, and stream its answer"),
    "chat": ("linnet.cli.chat", "a conversation with a model, in the terminal"),
    "serve": ("linnet.cli.serve", "a model behind OpenAI's API, for many requests at once"),
    "embed": ("linnet.cli.embed", "sentence vectors from an encoder of the zoo"),
    "nest": ("linnet.nest.__main__", "fetch and list the models of the zoo"),
}

OK, ERRORS, USAGE, BUG, INTERRUPTED, PIPE_CLOSED = 0, 1, 2, 70, 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; the result is its exit status."""
    words = sys.argv[1:] if argv is None else list(argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal that lacks a character is no error
            stream.reconfigure(errors="backslashreplace")
    try:
        status = _run(words)
        sys.stdout.flush()
        return status
    except SystemExit as e:  # argparse: --help, --version, a wrong command line
        return e.code if isinstance(e.code, int) else USAGE
    except LinnetError as e:
        _report(e, _color_wanted("--no-color" not in words, sys.stderr))
        return ERRORS
    except KeyboardInterrupt:
        print("linnet: stopped", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has gone; give what is still buffered to nobody, so that exit is silent too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except Exception as e:
        return _bug(e)


def color(args: argparse.Namespace, stream: TextIO) -> bool:
    """Whether this command line, on this stream, gets colours."""
    return _color_wanted(not args.no_color, stream)


def _color_wanted(allowed: bool, stream: TextIO) -> bool:
    return allowed and "NO_COLOR" not in os.environ and stream.isatty()


def _report(error: LinnetError, color: bool) -> None:
    """The error on standard error, after the findings it carries."""
    if error.diagnostics:
        from linnet.render import render_text

        for diagnostic in error.diagnostics:
            print(render_text(diagnostic, color=color), end="\n\n", file=sys.stderr)
    print(f"linnet: {error}", file=sys.stderr)


def _run(words: list[str]) -> int:
    parser = _parser(words)
    args, unknown = parser.parse_known_args(words)
    if unknown:
        where = "linnet" if args.command is None else f"linnet {args.command}"
        parser.error(f"unrecognized arguments: {' '.join(unknown)}; {where} --help lists them")
    if args.command is None:
        _parser([]).print_help(sys.stderr)
        return USAGE
    run: Any = import_module(COMMANDS[args.command][0]).run
    status: int = run(args)
    return status


def _parser(words: list[str]) -> argparse.ArgumentParser:
    """The parser; only the command that is being called has its arguments filled in."""
    parser = argparse.ArgumentParser(
        prog="linnet",
        description="Linnet, a typed tensor language.",
        epilog="Exit status: 0 fine, 1 errors in the input, 2 a wrong command line, 70 a bug in "
        "Linnet, 130 stopped by Ctrl-C.",
    )
    parser.add_argument("-V", "--version", action="version", version=f"linnet {__version__}")
    parser.add_argument("--no-color", action="store_true", help="plain text, also on a terminal")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    chosen = next((word for word in words if not word.startswith("-")), None)
    if chosen is not None and chosen not in COMMANDS:
        near = get_close_matches(chosen, COMMANDS, 1)
        hint = f"; did you mean `{near[0]}`?" if near else "; linnet --help lists them"
        parser.error(f"no command `{chosen}`{hint}")
    for name, (module, line) in COMMANDS.items():
        command = commands.add_parser(name, help=line, description=line[0].upper() + line[1:] + ".")
        command.add_argument(
            "--no-color", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS
        )
        if name == chosen:
            import_module(module).add_arguments(command)
    return parser


def _bug(error: Exception) -> int:
    """Say that Linnet is at fault, not the user's program, and where to tell."""
    if os.environ.get("LINNET_DEBUG") == "1":
        traceback.print_exc()
    print(
        f"linnet: {type(error).__name__}: {error}\n"
        f"This is a bug in Linnet {__version__}, not in your program. Please report it (README.md, "
        "Reporting a bug)\nwith this command line and its source; LINNET_DEBUG=1 shows where it "
        "happened.",
        file=sys.stderr,
    )
    return BUG
