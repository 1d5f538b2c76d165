"""The golden fixture itself: it fails on a difference, on a missing file and on an unused one."""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = """
import pytest

def test_one(golden):
    golden("first\\n", "one.txt")

@pytest.mark.parametrize("n", [1, 2])
def test_many(golden, n):
    golden(f"number {n}\\n")

def test_without():
    pass
"""
FOLDER = "tests/golden/thing"


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A checkout with one test file that uses three golden files, written by --update."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they cost a second a start
    tests = pytester.mkdir("tests")
    (tests / "conftest.py").write_text(Path(__file__).with_name("conftest.py").read_text())
    (tests / "test_thing.py").write_text(TESTS)
    assert run(pytester, "--update").ret == 0
    return pytester


def run(suite: pytest.Pytester, *args: str) -> pytest.RunResult:
    plugins = ["-p", "no:cacheprovider", *(["-p", "xdist"] if "-n" in args else [])]
    return suite.runpytest_subprocess(*plugins, *args)


@pytest.mark.slow
def test_update_writes_what_the_next_run_reads(suite: pytest.Pytester) -> None:
    names = sorted(file.name for file in (suite.path / FOLDER).iterdir())
    assert names == ["one.txt", "test_many-1.txt", "test_many-2.txt"]
    run(suite).assert_outcomes(passed=4)


@pytest.mark.slow
def test_difference_and_missing_file_fail(suite: pytest.Pytester) -> None:
    (suite.path / FOLDER / "one.txt").write_text("other\n")
    (suite.path / FOLDER / "test_many-2.txt").unlink()
    result = run(suite)
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(["*differs from*one.txt*", "*no golden file*test_many-2.txt*"])


@pytest.mark.slow
@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["alone", "workers"])
def test_unused_file_fails_the_whole_run_only(suite: pytest.Pytester, workers: list[str]) -> None:
    stale = suite.path / FOLDER / "stale.txt"
    stale.write_text("nobody reads this\n")
    assert run(suite, *workers, "-k", "test_one").ret == 0
    assert run(suite, *workers, "-k", "not test_without").ret == 1
    result = run(suite, *workers)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["FAILED tests/golden/thing/stale.txt"])
    assert run(suite, *workers, "--update").ret == 0
    assert not stale.exists()
    assert run(suite, *workers).ret == 0


@pytest.mark.slow
def test_golden_files_of_a_test_file_that_is_gone_fail(suite: pytest.Pytester) -> None:
    (suite.path / "tests/test_thing.py").unlink()
    (suite.path / "tests/test_other.py").write_text("def test_it():\n    pass\n")
    result = run(suite)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["FAILED tests/golden/thing/one.txt"])
