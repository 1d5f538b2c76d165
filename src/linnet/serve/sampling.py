"""Logits to tokens: greedy, or sampled with noise that depends on nothing but the request.

The noise for a token is a hash of (seed, position, token id), so that neither the neighbours in a
batch nor the backend change what is drawn. `draw_numpy` says in 64-bit floats which token that is,
row by row. On an accelerator `draw` computes a batch in 32 bits and looks at how far the winner is
ahead: where that is less than its arithmetic can be off by, and where a token is as likely as the
last one that a filter keeps, it asks `draw_numpy` for the row. So both choose the same tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from linnet.diagnostics import LinnetError
from linnet.serve.request import Matcher
from linnet.serve.request import Sampling as Sampling

if TYPE_CHECKING:
    import torch

Array = npt.NDArray[Any]

F32 = float(np.finfo(np.float32).max)
MOST = 16.7
"""No noise is larger."""
NEAR = 5.0
"""Tokens this much (in units of the noise) below the best one need noise that few have."""
APART = 1e-4
"""Noisy scores this far apart are in that order; errors of 32-bit ones are under a fifth of it."""
SURE = 4e-6
"""So far from `top_p`, relatively, a sum of 32-bit probabilities is on its own side."""
EXTREME = 1e-20
"""Temperatures below this, or above its inverse, are too much for 32 bits."""
CANDIDATES = 256
"""So many tokens are looked at first for those that reach `top_p`."""
SPARE = 64
"""So many more than a filter keeps are looked at, which hold those as likely as its last one."""


class DrawError(LinnetError):
    """Logits that no token can be drawn from: the rows at fault, and why; all others are fine."""

    def __init__(self, reasons: Mapping[int, str]) -> None:
        super().__init__(
            "; ".join(f"row {row} of the logits: {why}" for row, why in reasons.items())
        )
        self.reasons = reasons

    @property
    def rows(self) -> tuple[int, ...]:
        return tuple(self.reasons)


@dataclass(slots=True)
class Draw:
    """A row of logits that a token is drawn from.

    `position` is the token's index in prompt + answer. `logprobs` asks for its log-probability, and
    for so many alternatives.
    """

    sampling: Sampling
    position: int
    prompt: Sequence[int] = ()
    answer: Sequence[int] = ()
    matcher: Matcher | None = None
    logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class Drawn:
    """A token; its log-probability and its alternatives (id, log-probability), likeliest first.

    Log-probabilities are those of the model: before penalties, bias, grammar, temperature and
    filters, as OpenAI and vLLM state them.
    """

    token: int
    logprob: float | None = None
    top: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])


# --- the noise --------------------------------------------------------------------------------


def lowbias32(x: Array) -> Array:
    """A bijective hash of 32-bit words with low bias (C. Wellons, hash prospector, 2018)."""
    x = x.astype(np.uint32)
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    x = x ^ (x >> np.uint32(16))
    return x


def mixed(key: int, position: int) -> int:
    """What the ids of tokens are hashed with for one token of one request, 32 bits."""
    return _hashed((position & 0xFFFFFFFF) ^ _hashed(key))


def _hashed(x: int) -> int:
    """`lowbias32` of one number."""
    x = (x ^ x >> 16) * 0x7FEB352D & 0xFFFFFFFF
    x = (x ^ x >> 15) * 0x846CA68B & 0xFFFFFFFF
    return x ^ x >> 16


def gumbel(key: int, position: int, ids: Array) -> Array:
    """Gumbel noise for token ids at a position, f64."""
    words = lowbias32(ids.astype(np.uint32) ^ np.uint32(mixed(key, position)))
    uniform = ((words >> np.uint32(9)).astype(np.float64) + 0.5) * 2.0**-23
    return np.asarray(-np.log(-np.log(uniform)))


# --- one row ----------------------------------------------------------------------------------


def draw_numpy(
    logits: Array,
    sampling: Sampling,
    position: int,
    prompt: Sequence[int] = (),
    answer: Sequence[int] = (),
    allowed: Sequence[int] | None = None,
) -> int:
    """The next token from logits [Vocab]; ties go to the lowest id.

    `allowed` has a bit for each token, as `Matcher.allowed`. DrawError says that none is left.
    """
    changed = logits.astype(np.float32)
    if sampling.changes_logits:
        ids, factors, shifts = _changes(sampling, prompt, answer, len(changed))
        with np.errstate(over="ignore", invalid="ignore"):  # what is no number is found later
            old = changed[ids]
            changed[ids] = np.where(old > 0, old / factors, old * factors) + shifts
    if allowed is not None:
        changed[~_bits(allowed, len(changed))] = -np.inf
    return _pick(changed, sampling, position)


def _pick(logits: Array, sampling: Sampling, position: int) -> int:
    """The next token from f32 logits to which all that changes logits was done."""
    best = int(logits.argmax())
    if not math.isfinite(logits[best]):
        raise DrawError({0: _reason(float(logits[best]))})
    if sampling.temperature == 0:
        return best
    # Scores are logits relative to the best one, over the temperature: the best is 0. What is far
    # from it in 64 bits is infinitely far in 32.
    with np.errstate(over="ignore", invalid="ignore"):
        if _filters(sampling):
            ids = _kept(logits, best, sampling)
        else:
            ids = _near(logits, best, sampling, position)
        scores = (logits[ids].astype(np.float64) - float(logits[best])) / sampling.temperature
    return int(ids[(scores + gumbel(sampling.key, position, ids)).argmax()])


def _near(logits: Array, best: int, sampling: Sampling, position: int) -> Array:
    """The tokens, the lowest first, that may have a better noisy score than the best token.

    Those have a logit near it, or much noise: so the noise of most tokens is only hashed.
    """
    key = mixed(sampling.key, position)
    noise = -math.log(-math.log(((_hashed(best ^ key) >> 9) + 0.5) * 2.0**-23))
    least = float(logits[best]) - (MOST - noise) * sampling.temperature
    ids = np.flatnonzero(logits >= _below(least))
    if len(ids) * 8 < len(logits):
        return ids
    enough = math.exp(-math.exp(-(NEAR + noise - APART)))  # the number whose noise that is
    words = _spread(len(logits)) ^ np.uint32(key ^ key >> 16)
    words *= np.uint32(0x7FEB352D)
    words ^= words >> np.uint32(15)
    words *= np.uint32(0x846CA68B)
    words ^= words >> np.uint32(16)
    may = words >= np.uint32(max(int(enough * 2**32) - 1024, 0))
    may |= logits >= _below(float(logits[best]) - NEAR * sampling.temperature)
    return np.flatnonzero(may)


def _below(number: float) -> Any:
    """The largest finite f32 below a number, or the lowest there is."""
    return np.nextafter(np.float32(max(number, -F32)), np.float32(-F32))


@lru_cache(maxsize=4)
def _spread(count: int) -> Array:
    """The ids below the count after the first step of the hash, which bits pass one by one."""
    ids = np.arange(count, dtype=np.uint32)
    return ids ^ ids >> np.uint32(16)


def _filters(sampling: Sampling) -> bool:
    return sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0


def _kept(logits: Array, best: int, sampling: Sampling) -> Array:
    """The tokens that the filters keep, the lowest first; of equal ones the lowest ids."""
    top = float(logits[best])
    if 0 < sampling.top_k < len(logits):
        ids = _first(logits, sampling.top_k)
        total = None
    elif sampling.top_p < 1:
        ids, total = _heavy(logits, best, sampling)
    elif sampling.min_p == 0:
        return np.arange(len(logits))
    else:
        least = top + (math.log(sampling.min_p) - APART) * sampling.temperature
        ids = np.flatnonzero(logits >= _below(least))
    chances = _chances(logits[ids], top, sampling)
    if sampling.top_p < 1:
        order = np.argsort(-logits[ids], kind="stable")
        ids, chances = ids[order], chances[order]
        before = np.cumsum(chances) - chances
        if total is None:
            count = np.searchsorted(before, sampling.top_p * chances.sum())
        else:  # which is rounded
            ends = sampling.top_p * total * np.array([1 - SURE, 1 + SURE])
            count, most = np.searchsorted(before, ends)
            if count < most:
                exact = _chances(logits, top, sampling).sum()
                count = np.searchsorted(before, sampling.top_p * exact)
        ids, chances = ids[:count], chances[:count]
    return np.sort(ids[chances >= sampling.min_p])


def _chances(logits: Array, top: float, sampling: Sampling) -> Array:
    """Probabilities, f64, relative to that of the best token."""
    return np.asarray(np.exp((logits.astype(np.float64) - top) / sampling.temperature))


def _first(logits: Array, count: int) -> Array:
    """The tokens with the largest logits, so many; the lowest first, also of equal ones."""
    groups = len(logits) // 64
    if count < groups:
        # As many are no less than the k-th best of the groups' best ones, which are soon found.
        best = logits[: groups * 64].reshape(64, groups).max(0)
        some = np.flatnonzero(logits >= np.partition(best, groups - count)[groups - count])
    else:
        some = np.arange(len(logits))
    values = logits[some]
    least = np.partition(values, len(some) - count)[len(some) - count]
    ids = some[values >= least]
    if len(ids) > count:
        equal = np.flatnonzero(logits[ids] == least)
        ids = np.delete(ids, equal[count - len(ids) :])
    return np.asarray(ids)


def _heavy(logits: Array, best: int, sampling: Sampling) -> tuple[Array, float]:
    """The tokens, the lowest first, that those which reach `top_p` are among; and a total.

    Where as many tokens as there are, all as light as one, are together what `top_p` leaves out,
    that one is left out; and what is known to be left out makes the rest fewer. The total is of the
    probabilities of all tokens, relative to that of the best one, up to SURE.
    """
    plain = EXTREME < sampling.temperature < 1 / EXTREME
    kind = np.float32 if plain else np.float64
    chances = np.subtract(logits, logits[best], dtype=kind)
    chances /= kind(sampling.temperature)
    np.exp(chances, out=chances)
    total = rest = float(chances.sum(dtype=np.float64))
    ids = np.arange(len(logits))
    while True:
        # What else may be left out, of `rest`; each time as if sums were off as far as they may be.
        spare = rest - (sampling.top_p + SURE) * total
        heavy = np.flatnonzero(chances * kind(len(ids)) > spare)
        if len(heavy) > 0.8 * len(ids):
            return ids, total
        ids, chances = ids[heavy], chances[heavy]
        rest = float(chances.sum(dtype=np.float64))


def _changes(
    sampling: Sampling, prompt: Sequence[int], answer: Sequence[int], vocab: int
) -> tuple[Array, Array, Array]:
    """The tokens whose logits change, by which factor (f32), and what is then added (f32)."""
    before = prompt if sampling.repetition_penalty != 1 else ()
    bias = sampling.logit_bias
    given = [np.asarray(one, np.int64) for one in (before, answer, [*bias])]
    ids, places = np.unique(np.concatenate(given), return_inverse=True)
    if len(ids) and not 0 <= ids[0] <= ids[-1] < vocab:
        bad = ids[0] if ids[0] < 0 else ids[-1]
        raise DrawError(
            {0: f"token {bad} has a penalty or a bias, and the model has tokens 0 to {vocab - 1}"}
        )
    end = len(before) + len(answer)
    times = np.bincount(places[len(before) : end], minlength=len(ids))
    factors = np.ones(len(ids), np.float32)
    factors[places[:end]] = sampling.repetition_penalty
    shifts = -(sampling.presence_penalty * (times > 0) + sampling.frequency_penalty * times)
    shifts[places[end:]] += [*bias.values()]
    with np.errstate(over="ignore"):
        return ids, factors, shifts.astype(np.float32)


def _bits(allowed: Sequence[int], vocab: int) -> Array:
    """Bits of 32-bit words as booleans [vocab]; those that the words lack are not set."""
    words = np.asarray(allowed).astype("<u4")
    bits = np.unpackbits(words.view(np.uint8), bitorder="little", count=vocab)
    return bits.astype(np.bool_)


def _why(error: LinnetError) -> str:
    """The reason of one row's failure, or what its grammar says."""
    return error.reasons[0] if isinstance(error, DrawError) else str(error)


def _reason(best: float) -> str:
    what = {math.inf: "a logit is infinite", -math.inf: "no token may come next"}
    return f"{what.get(best, 'a logit is not a number')}, so that none can be drawn"


# --- a batch ----------------------------------------------------------------------------------


def draw(logits: Any, draws: Sequence[Draw]) -> list[Drawn]:
    """A token for every row of logits [N, Vocab], as `draw_numpy` draws it.

    They are a torch tensor on any device, or an array of numpy or jax, of any float dtype. Rows
    that no token can be drawn from are a DrawError.
    """
    if not hasattr(logits, "detach"):  # an array, and no tensor
        return _on_host(np.asarray(logits).astype(np.float32, copy=False), draws)
    if logits.device.type == "cpu":
        return _on_host(logits.detach().float().numpy(), draws)
    return _on_device(logits, draws)


def draw_torch(
    logits: Any,
    sampling: Sampling,
    position: int,
    prompt: Sequence[int] = (),
    answer: Sequence[int] = (),
    matcher: Matcher | None = None,
) -> int:
    """The next token from logits [Vocab], as `draw_numpy` draws it."""
    return draw(logits[None], [Draw(sampling, position, prompt, answer, matcher)])[0].token


draw_jax = draw_torch


def _plain(one: Draw) -> bool:
    """Whether it is the likeliest token, with nothing to change that."""
    sampling = one.sampling
    return sampling.temperature == 0 and not sampling.changes_logits and one.matcher is None


def _on_host(logits: Array, draws: Sequence[Draw]) -> list[Drawn]:
    """The tokens of f32 logits [N, Vocab]."""
    best = logits.argmax(1)
    bests = logits[np.arange(len(best)), best].tolist()
    tokens: list[int] = best.tolist()
    bad: dict[int, str] = {}
    for row, one in enumerate(draws):
        if not _plain(one):
            try:
                allowed = None if one.matcher is None else one.matcher.allowed()
                tokens[row] = draw_numpy(
                    logits[row], one.sampling, one.position, one.prompt, one.answer, allowed
                )
            except LinnetError as error:
                bad[row] = _why(error)
        elif not math.isfinite(bests[row]):
            bad[row] = _reason(bests[row])
    if bad:
        raise DrawError(bad)
    return [
        Drawn(token) if one.logprobs is None else _with_logprobs(logits[row], token, one.logprobs)
        for row, (token, one) in enumerate(zip(tokens, draws))
    ]


def _with_logprobs(logits: Array, token: int, count: int) -> Drawn:
    count = min(count, len(logits))
    best = logits.max()
    total = float(best) + math.log(np.exp(logits - best).sum(dtype=np.float64))
    ids = _first(logits, count) if count else np.arange(0)
    ids = ids[np.argsort(-logits[ids], kind="stable")]
    values = (logits[ids].astype(np.float64) - total).tolist()
    return Drawn(token, float(logits[token]) - total, list(zip(ids.tolist(), values)))


# --- a batch on an accelerator ----------------------------------------------------------------


def _on_device(logits: torch.Tensor, draws: Sequence[Draw]) -> list[Drawn]:
    """The same where the logits are: only tokens and log-probabilities leave it."""
    import torch

    with torch.inference_mode():
        tokens, bests = _best(logits)
        rest = [row for row, one in enumerate(draws) if not _plain(one)]
        if rest:
            work = _changed(logits, rest, draws)
            for row, token, best in zip(rest, *_best(work)):
                tokens[row], bests[row] = token, best
        bad = {row: _reason(best) for row, best in enumerate(bests) if not math.isfinite(best)}
        if bad:
            raise DrawError(bad)
        if rest:
            _sample(work, rest, draws, bests, tokens)
        return _all_logprobs(logits, draws, tokens)


def _best(logits: torch.Tensor) -> tuple[list[int], list[float]]:
    """The first of the largest logits of each row and what it is; a NaN counts as the largest."""
    best = logits.argmax(1, keepdim=True)
    return best[:, 0].tolist(), logits.gather(1, best)[:, 0].float().tolist()


def _changed(logits: torch.Tensor, rows: list[int], draws: Sequence[Draw]) -> torch.Tensor:
    """The rows in f32 with penalties, bias and grammars applied: a copy."""
    import torch

    work = logits[torch.tensor(rows, device=logits.device)].float()
    for one, own, row in zip((draws[row] for row in rows), work, rows):
        try:
            if one.sampling.changes_logits:
                changes = _changes(one.sampling, one.prompt, one.answer, len(own))
                ids, factors, shifts = (torch.from_numpy(part).to(own.device) for part in changes)
                old = own[ids]
                own[ids] = torch.where(old > 0, old / factors, old * factors) + shifts
            if one.matcher is not None:
                allowed = torch.from_numpy(_bits(one.matcher.allowed(), len(own)))
                own.masked_fill_(~allowed.to(own.device), -math.inf)
        except LinnetError as error:
            raise DrawError({row: _why(error)}) from error
    return work


def _sample(
    work: torch.Tensor,
    rows: list[int],
    draws: Sequence[Draw],
    bests: Sequence[float],
    tokens: list[int],
) -> None:
    """Sets the tokens of sampled rows, from the changed logits."""
    import torch

    sampled = [k for k, row in enumerate(rows) if draws[row].sampling.temperature > 0]
    for filtered in (False, True):
        some = [k for k in sampled if _filters(draws[rows[k]].sampling) == filtered]
        warm = [k for k in some if draws[rows[k]].sampling.temperature > EXTREME]
        found: dict[int, int] = {}
        if warm:
            part = work if len(warm) == len(work) else work[torch.tensor(warm, device=work.device)]
            ones = [draws[rows[k]] for k in warm]
            best = [bests[rows[k]] for k in warm]
            pick = _filtered if filtered else _unfiltered
            found = {k: token for k, token in zip(warm, pick(part, ones, best)) if token >= 0}
        for k in some:
            one = draws[rows[k]]
            if k not in found:  # too close for 32 bits
                found[k] = _pick(work[k].cpu().numpy(), one.sampling, one.position)
            tokens[rows[k]] = found[k]


def _unfiltered(work: torch.Tensor, draws: Sequence[Draw], bests: Sequence[float]) -> list[int]:
    """The tokens with the best noisy scores; -1 where two are too close."""
    import torch

    ids = torch.arange(work.shape[1], dtype=torch.int32, device=work.device)
    noisy = _noise(ids[None], draws).add_(_scores(work, draws, bests))
    return _settled(noisy)[:, 0].tolist()


def _filtered(work: torch.Tensor, draws: Sequence[Draw], bests: Sequence[float]) -> list[int]:
    """The same among the tokens that filters keep; -1 also where it matters which those are."""
    import torch

    vocab = work.shape[1]
    limits = [min(one.sampling.top_k or vocab, vocab) for one in draws]
    total = None
    if any(limit == vocab and one.sampling.top_p < 1 for limit, one in zip(limits, draws)):
        total = _scores(work, draws, bests).exp_().sum(1, keepdim=True, dtype=torch.float64)
    wanted = max(limit if limit < vocab else CANDIDATES for limit in limits)
    while True:
        count = min(wanted + SPARE, vocab)
        values, ids = work.topk(count, 1)
        sure, maybe = _reach(values, draws, bests, limits, total)
        if count == vocab or not bool((maybe == count).any()):
            break
        wanted *= 8
    # Values from `last` on may be kept, those above `beyond` surely are; of equal ones at the end
    # it is a matter of their ids.
    last = values.gather(1, maybe - 1)
    beyond = values.gather(1, sure.clamp(max=count - 1)).masked_fill_(sure == count, -math.inf)
    noisy = _noise(ids.to(torch.int32), draws).add_(_scores(values, draws, bests))
    winner = _settled(noisy.masked_fill_(values < last, -math.inf))
    found = winner.clamp(min=0)
    known = (values[:, -1:] < last) | (last == -math.inf) | (count == vocab)
    known &= (winner >= 0) & (values.gather(1, found) > beyond)
    return ids.gather(1, found).masked_fill_(~known, -1)[:, 0].tolist()


def _reach(
    values: torch.Tensor,
    draws: Sequence[Draw],
    bests: Sequence[float],
    limits: Sequence[int],
    total: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """How many of the sorted values [N, K] are surely kept, and may be: [N, 1] each.

    `total` sums the probabilities of all tokens, relative to the best one.
    """
    import torch

    settings = [one.sampling for one in draws]
    numbers = zip(bests, settings, limits)
    table = [[best, one.temperature, one.top_p, one.min_p, n] for best, one, n in numbers]
    columns = torch.tensor(table, dtype=torch.float64, device=values.device)
    best, temperature, top_p, min_p, limit = columns[:, :, None].unbind(1)
    within = torch.arange(values.shape[1], device=values.device) < limit
    chances = ((values.double() - best) / temperature).exp_() * within
    reached = chances.cumsum(1) - chances
    sums = chances.sum(1, keepdim=True)
    if total is not None:
        sums = torch.where(limit < len(within[0]), sums, total)
    either = top_p == 1
    counts = [
        (
            within
            & (either | (reached < top_p * sums * (1 - slack)))
            & (chances >= min_p * (1 + slack))
        ).sum(1, keepdim=True)
        for slack in (SURE, -SURE)
    ]
    return counts[0], counts[1]


def _settled(noisy: torch.Tensor) -> torch.Tensor:
    """The index of the largest value of each row [N, 1]; -1 where the next one is too close."""
    import torch

    if noisy.shape[1] == 1:
        return torch.zeros_like(noisy, dtype=torch.int64)
    order = noisy.topk(2, 1)
    ahead = order.values[:, :1] - order.values[:, 1:] > APART
    return order.indices[:, :1].masked_fill_(~ahead, -1)


def _scores(logits: torch.Tensor, draws: Sequence[Draw], bests: Sequence[float]) -> torch.Tensor:
    """Logits relative to the best one of their row, over its temperature."""
    import torch

    best, warmth = torch.tensor(
        [bests, [1 / one.sampling.temperature for one in draws]], device=logits.device
    )[:, :, None]
    scores: torch.Tensor = (logits - best).mul_(warmth)
    return scores


def _noise(ids: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    """Gumbel noise for token ids [N or 1, K] of each row, f32 [N, K]: `gumbel` in 32 bits."""
    import torch

    # int32 stands for uint32, which torch cannot shift; so what a shift brings in is masked off.
    keys = [mixed(one.sampling.key, one.position) for one in draws]
    x = ids ^ torch.from_numpy(np.array(keys, np.uint32).view(np.int32)).to(ids.device)[:, None]
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B - (1 << 32))):
        x.bitwise_xor_((x >> shift).bitwise_and_((1 << (32 - shift)) - 1)).mul_(factor)
    x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF))
    uniform = (x >> 9).bitwise_and_(0x7FFFFF).float().add_(0.5).mul_(2.0**-23)
    return uniform.log_().neg_().log_().neg_()


def _all_logprobs(
    logits: torch.Tensor, draws: Sequence[Draw], tokens: Sequence[int]
) -> list[Drawn]:
    import torch

    drawn = [Drawn(token) for token in tokens]
    rows = [row for row, one in enumerate(draws) if one.logprobs is not None]
    if rows:
        raw = logits[torch.tensor(rows, device=logits.device)].float()
        values = raw.log_softmax(1)
        own = torch.tensor([[tokens[row]] for row in rows], device=logits.device)
        most = max(draws[row].logprobs or 0 for row in rows)
        ids = raw.sort(dim=1, descending=True, stable=True).indices[:, :most]
        found = (values.gather(1, which).tolist() for which in (own, ids))
        parts = zip(rows, ids.tolist(), *found)
        for row, top, chosen, best in parts:
            drawn[row] = Drawn(tokens[row], chosen[0], list(zip(top, best))[: draws[row].logprobs])
    return drawn
