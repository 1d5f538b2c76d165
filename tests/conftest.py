"""What every test may use: golden files, the seed's directory, and checks switched on."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
SEED_CARD = "mistral-7b-instruct-v0.3"

os.environ["LINNET_CHECKS"] = "1"
# Tests that start `python -m linnet` get this checkout, installed or not.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
)
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the workers are the parallelism

# Thousands of small programs leave cycles behind; looking for them at the usual rate takes a sixth
# of the time.
gc.set_threshold(100_000, 20, 50)

pytest_plugins = ["pytester"]


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # modules and test items are here to stay


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """pytest collects garbage five times at the end, to hear of what was left open: one will do."""
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("linnet")
    group.addoption("--update", action="store_true", help="rewrite golden files")
    group.addoption(
        "--seed-dir",
        default="../shared/seed",
        metavar="DIR",
        help="folder that holds the seed packages (default: ../shared/seed beside the repository)",
    )


# --- the seed ---------------------------------------------------------------------------------


def seed_card(config: pytest.Config) -> Path:
    return (ROOT / config.getoption("--seed-dir") / SEED_CARD).resolve()


def seed_line(config: pytest.Config) -> str:
    place = seed_card(config)
    if (place / "linnet.toml").is_file():
        return f"seed: {place}"
    return f"seed: MISSING at {place}; tests that need it are skipped (--seed-dir=DIR)"


def pytest_report_header(config: pytest.Config) -> str:
    return seed_line(config)


@pytest.fixture(scope="session")
def seed(pytestconfig: pytest.Config) -> Path:
    """The seed's package directory; the test is skipped, and the run says so, where it is not."""
    line = seed_line(pytestconfig)
    if "MISSING" in line:
        pytest.skip(line)
    return seed_card(pytestconfig)


# --- golden files -----------------------------------------------------------------------------
#
# tests/ROOM/golden/STEM/NAME belongs to tests/ROOM/test_STEM.py. When all golden tests of a test
# file have run and passed, a file in its golden folder that none of them asked for is an error.

Golden = Callable[..., None]
USED: pytest.StashKey[set[str]] = pytest.StashKey()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """`golden(text, name=...)`: the text equals the golden file, or becomes it under --update."""
    test = request.path
    folder = golden_folder(test)
    default = re.sub(r"[^A-Za-z0-9_.-]+", "-", request.node.name).strip("-") + ".txt"
    update = request.config.getoption("--update")
    used = request.config.stash.setdefault(USED, set())

    def compare(text: str, name: str = default) -> None:
        __tracebackhide__ = True
        file = folder / name
        used.add(str(file))
        if update:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8", newline="")
        elif not file.is_file():
            pytest.fail(f"no golden file {file}; `pytest --update` writes it:\n{text}", False)
        else:
            with file.open(encoding="utf-8", newline="") as f:
                assert text == f.read(), f"differs from {file} (`pytest --update` accepts it)"

    return compare


def golden_folder(test: Path) -> Path:
    return test.parent / "golden" / test.stem.removeprefix("test_")


@dataclass(eq=False)
class GoldenBooks:
    """Which golden tests were collected, left out and passed, over all worker processes."""

    config: pytest.Config
    collected: dict[str, str] = field(default_factory=dict)  # node id -> golden folder
    partial: set[str] = field(default_factory=set)  # folders of test files not run whole
    passed: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)
    unused: list[str] = field(default_factory=list)

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self.partial.update(str(golden_folder(item.path)) for item in items if uses_golden(item))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            if uses_golden(item):
                self.collected[item.nodeid] = str(golden_folder(item.path))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.passed.add(report.nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """A worker process has ended: add its books to ours."""
        books = getattr(node, "workeroutput", {}).get("golden", {})
        self.collected.update(books.get("collected", {}))
        self.partial.update(books.get("partial", ()))
        self.used.update(books.get("used", ()))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.used.update(self.config.stash.get(USED, set()))
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["golden"] = {
                "collected": self.collected,
                "partial": sorted(self.partial),
                "used": sorted(self.used),
            }
            return
        folders = self.whole() | orphans(self.config.rootpath / "tests")
        files = sorted(file for folder in folders for file in files_under(Path(folder)))
        self.unused = [file for file in files if file not in self.used]
        if self.config.getoption("--update"):
            for file in self.unused:
                Path(file).unlink()
        elif self.unused and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def whole(self) -> set[str]:
        """Golden folders whose test file ran whole and passed."""
        named = [arg for arg in self.config.args if "::" in arg]
        if named or self.config.getoption("lf", False):
            return set()
        broken = {self.collected[node] for node in self.collected.keys() - self.passed}
        return set(self.collected.values()) - self.partial - broken

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.unused:
            done = "removed" if self.config.getoption("--update") else "FAILED"
            terminalreporter.section("golden files that no test reads")
            for file in self.unused:
                terminalreporter.write_line(f"{done} {os.path.relpath(file, ROOT)}")
        if "MISSING" in seed_line(self.config):
            terminalreporter.write_line(seed_line(self.config))


def uses_golden(item: pytest.Item) -> bool:
    return "golden" in getattr(item, "fixturenames", ())


def orphans(tests: Path) -> set[str]:
    """Golden folders whose test file is gone."""
    folders = (folder for golden in tests.rglob("golden") for folder in golden.iterdir())
    return {str(f) for f in folders if not (f.parent.parent / f"test_{f.name}.py").is_file()}


def files_under(folder: Path) -> Iterator[str]:
    return (str(file) for file in folder.rglob("*") if file.is_file())


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(GoldenBooks(config), "linnet-golden")
