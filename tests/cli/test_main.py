"""The `linnet` command itself: help, wrong command lines, and how it ends."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from linnet import __version__, cli
from linnet.diagnostics import Findings, LinnetError
from linnet.source import Source, Span


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"linnet {__version__}\n"
    assert cli.main(["--help"]) == 0
    listed = capsys.readouterr().out
    assert all(f"\n    {name}" in listed for name in cli.COMMANDS)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_explains_itself(
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    golden: Callable[..., None],
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert cli.main([name, "--help"]) == 0
    said = capsys.readouterr().out
    assert f"usage: linnet {name}" in said
    golden(said, f"help-{name}.txt")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "usage: linnet"),
        (["chek"], "no command `chek`; did you mean `check`?"),
        (["weather"], "no command `weather`; linnet --help lists them"),
        (["check"], "the following arguments are required: PATH"),
        (["check", "--nope", "x"], "--nope; linnet check --help lists them"),
        (["--nope"], "unrecognized arguments: --nope"),
    ],
)
def test_wrong_command_lines(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert cli.main(words) == 2
    out, err = capsys.readouterr()
    assert message in err and not out


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A command `try` whose `run` the test fills in."""
    module = ModuleType("linnet_command_for_tests")
    module.add_arguments = lambda parser: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(cli.COMMANDS, "try", (module.__name__, "a command for tests"))
    return module


def raising(error: BaseException) -> Any:
    def run(args: object) -> int:
        raise error

    return run


def test_a_user_s_mistake(command: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    findings = Findings()
    source = Source("x.linnet", "let bad = 1\n")
    findings.add("E2101", "this is `bad`", Span(source, 4, 7))
    command.run = raising(LinnetError("x.linnet does not check", findings.sorted()))
    assert cli.main(["try"]) == 1
    out, err = capsys.readouterr()
    assert not out and err.endswith("linnet: x.linnet does not check\n")
    assert "this is `bad`" in err and "x.linnet:1:5" in err


@pytest.mark.parametrize("debug", [False, True])
def test_a_bug_of_ours(
    command: ModuleType,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    debug: bool,
) -> None:
    monkeypatch.setenv("LINNET_DEBUG", "1" if debug else "")
    command.run = raising(KeyError("lost"))
    assert cli.main(["try"]) == 70
    err = capsys.readouterr().err
    assert "linnet: KeyError: 'lost'\nThis is a bug in Linnet" in err
    assert ("Traceback" in err) == debug


def test_ctrl_c(command: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    command.run = raising(KeyboardInterrupt())
    assert cli.main(["try"]) == 130
    assert capsys.readouterr().err == "linnet: stopped\n"


def test_a_reader_that_leaves_is_no_error() -> None:
    """`linnet ... | head` ends without a word."""
    script = (
        "import sys, types\nfrom linnet import cli\n"
        "def run(args):\n    for _ in range(100000): print('a line')\n    return 0\n"
        "m = sys.modules['m'] = types.ModuleType('m')\n"
        "m.run, m.add_arguments = run, lambda parser: None\n"
        "cli.COMMANDS['try'] = ('m', 'a command')\nsys.exit(cli.main(['try']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        first = process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read()
    assert (first, said, process.returncode) == (b"a line\n", b"", 141)


def test_python_dash_m_linnet() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "linnet", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"linnet {__version__}\n"
