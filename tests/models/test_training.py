"""Training a tiny decoder as transformers trains it: losses, gradients, steps of AdamW."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from linnet.diagnostics import PlanError

from . import tiny

# transformers alone takes seconds to import
pytestmark = pytest.mark.slow

THETA = 10000.0


def loaded(**options: Any) -> Any:
    import torch

    import linnet.torch

    weights = {name: torch.from_numpy(x.copy()) for name, x in tiny.weights().items()}
    return linnet.torch.load(
        tiny.FAMILY,
        generics={**tiny.SIZES, "Batch": 2, "MaxSeq": 32},
        constants={"THETA": THETA, "EPS": 1e-5},
        weights=weights,
        bindings=tiny.NAMES,
        **options,
    )


@pytest.fixture(scope="module")
def base() -> Any:
    return loaded()


@pytest.fixture
def model(base: Any) -> Any:
    return copy.deepcopy(base)


def rows() -> dict[str, Any]:
    """Two rows, the second with padding at its end; of the first, a prompt is not learned."""
    import torch

    ids = torch.from_numpy(tiny.tokens(4, 2, 24).astype(np.int64))
    mask = torch.ones_like(ids)
    mask[1, 17:] = 0
    labels = ids.masked_fill(mask == 0, -100)
    labels[0, :5] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def test_the_wrapper_answers_as_transformers(model: Any) -> None:
    import torch

    from linnet.torch import CausalLM

    given = rows()
    with torch.no_grad():
        theirs = tiny.mistral(THETA)(**given)
        for options in ({}, {"logits": True, "bucket": 7}):
            ours = CausalLM(model, **options)(**given)
            torch.testing.assert_close(ours.loss, theirs.loss, rtol=1e-5, atol=1e-5)
        seen = given["attention_mask"].bool()
        torch.testing.assert_close(ours.logits[seen], theirs.logits[seen], rtol=0, atol=2e-4)
        assert not ours.logits[~seen].any()
        wrapped = CausalLM(model)
        parts = wrapped(**given, num_items_in_batch=torch.tensor(70)).loss
        count = int((given["labels"][:, 1:] != -100).sum())
        torch.testing.assert_close(parts * 70 / count, theirs.loss, rtol=1e-5, atol=1e-5)
        scores = wrapped(given["input_ids"]).logits
        wanted = tiny.mistral(THETA)(given["input_ids"]).logits
        torch.testing.assert_close(scores, wanted, rtol=0, atol=2e-4)
        assert wrapped(**{**given, "labels": torch.full_like(given["labels"], -100)}).loss == 0


def test_the_wrapper_refuses_what_it_cannot_run(model: Any) -> None:
    import torch

    from linnet.torch import CausalLM

    for options, match in [
        ({"entry": "loss_pack"}, "there is no entry loss_pack; did you mean loss_packed"),
        ({"entry": "prefill"}, r"prefill takes \(tokens, pos\), expected \(tokens, positions"),
        ({"bucket": 0}, "bucket is 0"),
        ({"logits": True, "head": "lm_haed.weight"}, "did you mean lm_head.weight"),
    ]:
        with pytest.raises(PlanError, match=match):
            CausalLM(model, **options)
    given = rows()
    with pytest.raises(PlanError, match=r"labels is \[2, 23\], input_ids \[2, 24\]"):
        CausalLM(model)(given["input_ids"], labels=given["labels"][:, 1:])
    with pytest.raises(PlanError, match="input_ids: expected whole numbers"):
        CausalLM(model)(torch.ones(3))


def steps(run: Any, parameters: list[Any], count: int, rate: float) -> list[float]:
    import torch

    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=0.1)
    given, losses = rows(), []
    for _ in range(count):
        loss = run(**given).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def test_steps_of_adamw_as_transformers_takes_them(model: Any) -> None:
    from linnet.torch import CausalLM

    model.set_trainable(True)
    ours = steps(CausalLM(model), list(model.parameters()), 12, 3e-3)
    original = copy.deepcopy(tiny.mistral(THETA))
    theirs = steps(original, list(original.parameters()), 12, 3e-3)
    assert theirs[-1] < theirs[0] / 2
    np.testing.assert_allclose(ours, theirs, rtol=2e-3)


def test_adapters_alone_learn(model: Any) -> None:
    from linnet.torch import CausalLM

    paths = model.add_lora(["*_proj.weight", "*.mlp.*"], rank=4, alpha=8)
    assert len(paths) == 14
    trained = [p for p in model.parameters() if p.requires_grad]
    assert sum(p.numel() for p in trained) < sum(p.numel() for p in model.parameters()) / 4
    losses = steps(CausalLM(model), trained, 12, 1e-2)
    assert losses[-1] < losses[0] / 2
    with_adapters = CausalLM(model)(**rows()).loss.detach()
    model.merge_lora()
    assert abs(float(CausalLM(model)(**rows()).loss - with_adapters)) < 1e-4


@pytest.mark.parametrize("chosen", [True, "layers.1.*"])
def test_autocast_of_every_way_to_train(model: Any, chosen: Any) -> None:
    """Whatever of the weights trains; entries with state too."""
    import torch

    model.amp = "bf16"
    model.set_trainable(chosen)
    tokens = torch.from_numpy(tiny.tokens(6, 30))
    place = torch.arange(30, dtype=torch.int32), torch.zeros(30, dtype=torch.int32)
    for entry, inputs in [
        ("log_probs_packed", (tokens, *place, tokens.long().roll(-1))),
        ("forward", (tokens[None],)),
        ("prefill", (tokens[None].expand(2, -1), 0)),
    ]:
        found = model.run_entry(entry, inputs)
        assert found.dtype == torch.float32
        trained = [p for p in model.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(found.sum(), trained, allow_unused=True)
        assert all(g.isfinite().all() for g in gradients if g is not None)
        with torch.no_grad():
            wanted = model.run_entry(entry, inputs)
        assert not torch.equal(found, wanted)
        torch.testing.assert_close(found, wanted, rtol=0, atol=0.05 * float(wanted.abs().max()))


def test_losses_write_no_state(model: Any) -> None:
    from linnet.torch.touched import changed_states

    entries = model.program.entries
    for name in ("loss_packed", "log_probs_packed", "hidden_packed", "forward"):
        assert not changed_states(entries[name])
    assert changed_states(entries["prefill"]) == {
        "layers.*.attention.cache.keys",
        "layers.*.attention.cache.values",
    }


def test_checkpointed_layers_have_the_same_gradients(model: Any) -> None:
    import torch

    from linnet.torch import CausalLM

    model.set_trainable(True)
    wrapped, parameters = CausalLM(model, bucket=32), list(model.parameters())

    def kept() -> tuple[int, Any]:
        sizes: dict[int, int] = {}

        def pack(x: Any) -> Any:
            storage = x.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            loss = wrapped(**rows()).loss
        # Weights are there anyhow.
        held = sum(n for at, n in sizes.items() if at not in {p.data_ptr() for p in parameters})
        return held, torch.autograd.grad(loss, parameters)

    plain, wanted = kept()
    wrapped.gradient_checkpointing_enable()
    less, found = kept()
    assert less < plain / 3
    for a, b in zip(wanted, found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
