"""Every single mistake in the llama package is found, or is a valid program for a stated reason."""

from __future__ import annotations

from collections import Counter

import pytest

from mutation import Checker, Mutant, mutants, valid

EVERY = 5  # of a kind in a file; `python tests/mutation.py` makes all of them


@pytest.mark.slow
def test_the_list_of_valid_ones() -> None:
    known = valid()
    made = {m.key for m in mutants()}
    assert known.keys() <= made, known.keys() - made
    assert all(len(reason.split()) > 5 for reason in known.values())


@pytest.mark.slow
def test_mistakes_are_found() -> None:
    known, checker = valid(), Checker()
    made = mutants(every=EVERY)
    assert len({m.text for m in made}) == len(made) >= 300
    silent: list[Mutant] = []
    loud: list[Mutant] = []
    counts: Counter[int] = Counter()
    for mutant in made:
        found = checker.findings(mutant)
        counts[min(len(found), 3)] += 1
        if not found and mutant.key not in known:
            silent.append(mutant)
        if found and mutant.key in known:
            loud.append(mutant)
    assert not silent, "\n".join(m.key for m in silent)
    assert not loud, "listed as valid:\n" + "\n".join(m.key for m in loud)
    # One mistake is one finding, but where a declaration is wrong and each use is at odds with it;
    # what decoders share is used in many places.
    assert counts[1] >= 0.72 * len(made) and counts[3] <= 0.1 * len(made), counts
