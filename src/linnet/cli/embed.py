"""`linnet embed`: sentence vectors from an encoder, and how alike the sentences are."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linnet.cli.model import add_dtype, check_loading, loaded
from linnet.diagnostics import LinnetError

if TYPE_CHECKING:
    import numpy as np

    from linnet.nest.card import Card

EPILOG = """\
Each text becomes one line of numbers, a vector of length 1; the product of two of them is
the cosine of the angle between the texts. A `-` among the texts stands for the lines of
standard input. Progress and notices go to standard error.
"""
# Texts of one length that go through the model together.
BATCH = 32
LIMITS = "sentence_bert_config.json"
POOLING = "1_Pooling/config.json"
MODULES = "modules.json"


@dataclass(frozen=True, slots=True)
class Ids:
    """A text's ids as the model reads them; `length` counts those before any were cut off."""

    tokens: list[int]
    types: list[int]
    length: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(backend="torch")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument(
        "model", metavar="MODEL", help="a model of the zoo, a card, or a checkpoint"
    )
    parser.add_argument("texts", metavar="TEXT", nargs="+", help="what to embed; - reads lines")
    parser.add_argument("--similarity", action="store_true", help="the cosines of all pairs")
    parser.add_argument("--json", action="store_true", help="one JSON document instead")
    add_dtype(parser)
    parser.add_argument("--numerics", default="fast", help="exact, equivalent or fast (default)")
    parser.add_argument("--threads", type=int, metavar="N", help="processor threads to use")
    parser.add_argument("--weights", metavar="PATH", help="a local checkpoint instead")
    parser.add_argument("--std", metavar="DIR", help="another standard library")


def run(args: argparse.Namespace) -> int:
    from linnet.nest.entries import needing
    from linnet.nest.fetch import fetch_weights
    from linnet.nest.progress import TextProgress
    from linnet.nest.resolve import resolve

    check_loading(args)
    card = resolve(args.model)
    texts = list(_texts(args.texts))
    if not texts:
        raise LinnetError("there is no text to embed: standard input is empty")
    with needing(card, ("embed",), fetches=args.weights is None, std_root=args.std):
        files = None if args.weights is not None else fetch_weights(card, TextProgress(sys.stderr))
        ids = _encoded(card, args.weights if files is None else files.text_files, texts)
        model, _ = loaded(args, card, files, {}, ("embed",))
    vectors = embed(model, ids)
    if args.json:
        print(json.dumps(_document(args, texts, ids, vectors), ensure_ascii=False, indent=2))
    elif args.similarity:
        print("\n".join(_table(texts, vectors @ vectors.T)))
    else:
        print("\n".join(" ".join(str(value) for value in vector) for vector in vectors))
    return 0


def embed(model: Any, ids: list[Ids]) -> np.ndarray:
    """A row for each text, in f32; texts of one length share a pass, so none is padded."""
    import numpy as np
    import torch

    rows: dict[int, np.ndarray] = {}
    by_length: dict[int, list[int]] = {}
    for k, one in enumerate(ids):
        by_length.setdefault(len(one.tokens), []).append(k)
    with torch.inference_mode():
        for same in by_length.values():
            for start in range(0, len(same), BATCH):
                part = same[start : start + BATCH]
                tokens = torch.tensor([ids[k].tokens for k in part], dtype=torch.int32)
                types = torch.tensor([ids[k].types for k in part], dtype=torch.int32)
                found = model.run_entry("embed", [tokens, types]).float().cpu().numpy()
                rows.update(zip(part, found, strict=True))
    return np.stack([rows[k] for k in range(len(ids))])


def _texts(words: Iterable[str]) -> Iterator[str]:
    for word in words:
        if word == "-":
            yield from sys.stdin.read().splitlines()
        else:
            yield word


def _encoded(card: Card, place: Any, texts: list[str]) -> list[Ids]:
    """Every text's ids, cut to what the model takes; a notice names each that was cut."""
    from linnet.nest.text import load_text

    text = load_text(card, place)
    tokenizer = text.tokenizer
    _check_vocabulary(card, tokenizer.get_vocab(with_added_tokens=True), text.origin)
    # A published tokenizer may pad and cut to lengths of its own; here each text has its length.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    folder = _folder(place)
    _check_pooling(card, folder / POOLING)
    _check_modules(card, folder / MODULES)
    limit = _limit(card, folder / LIMITS)
    lower = _stated(folder / LIMITS).get("do_lower_case") is True
    read = [one.lower() for one in texts] if lower else texts
    lengths = [len(one.ids) for one in tokenizer.encode_batch(read)]
    if limit is not None:
        tokenizer.enable_truncation(limit)
    found = [
        Ids(one.ids, one.type_ids, length)
        for one, length in zip(tokenizer.encode_batch(read), lengths, strict=True)
    ]
    for k, (written, one) in enumerate(zip(texts, found, strict=True), 1):
        if not one.tokens:
            raise LinnetError(f"text {k} has no tokens, so it has no vector: {written!r}")
        if one.length > len(one.tokens):
            print(
                f"linnet: text {k} has {one.length} tokens and the model takes {limit}: the rest "
                f"is cut off ({_short(written)})",
                file=sys.stderr,
            )
    return found


def _check_vocabulary(card: Card, vocabulary: dict[str, int], origin: str) -> None:
    """Every id that the tokenizer can give has a row; a card's [text] was held to that before."""
    from linnet.nest.card import TextContract

    size = card.generics.get("Vocab") if card.text == TextContract() else None
    count = max(vocabulary.values(), default=-1) + 1
    if isinstance(size, int) and count > size:
        raise LinnetError(
            f"the tokenizer in {origin} has {count} tokens, {card.name} has Vocab = {size}: it is "
            "another model's; put the tokenizer.json of these weights beside them"
        )


def _folder(place: Any) -> Path:
    """Where the tokenizer's files lie, and what sentence-transformers writes beside them."""
    path = Path(place if isinstance(place, str | Path) else place[0])
    return path if path.is_dir() else path.parent


def _check_pooling(card: Card, path: Path) -> None:
    """Where the files say how a text's vector is made, it is the mean of its tokens' vectors."""
    stated = _stated(path)
    others = [
        key
        for key, value in stated.items()
        if key.startswith("pooling_mode_") and value is True and key != "pooling_mode_mean_tokens"
    ]
    if stated.get("pooling_mode", "mean") != "mean":
        others.append("pooling_mode")
    if others:
        raise LinnetError(
            f"{path}: `{others[0]}` is {json.dumps(stated[others[0]])}, and `embed` of "
            f"{card.name} takes the mean of the tokens' vectors, which is another vector"
        )


def _check_modules(card: Card, path: Path) -> None:
    """Where the files list what a text goes through, nothing is there that `embed` leaves out."""
    if not path.is_file():
        return
    kinds = re.findall(r'"type"\s*:\s*"(?:[^"]*\.)?([^".]*)"', path.read_text("utf-8", "replace"))
    for kind in kinds:
        if kind not in ("Transformer", "Pooling", "Normalize"):
            raise LinnetError(
                f"{path}: has a module {kind}, which `embed` of {card.name} lacks: its vectors "
                "would not be this checkpoint's"
            )


def _limit(card: Card, path: Path) -> int | None:
    """The most tokens of one text: as the file states it, within the table of positions."""
    stated: Any = _stated(path).get("max_seq_length")
    if stated is not None and (type(stated) is not int or stated < 1):
        raise LinnetError(f"{path}: max_seq_length is {stated!r}, not a number of tokens")
    positions = card.generics.get("MaxPositions")
    if not isinstance(positions, int):
        return stated
    room = positions - int(card.constants.get("FIRST_POSITION", 0))
    return room if stated is None else min(stated, room)


def _stated(path: Path) -> dict[str, Any]:
    """What a file of sentence-transformers says; nothing where it is not there."""
    if not path.is_file():
        return {}
    from linnet.weights.objects import read_object

    return read_object(path, LinnetError)


def _document(
    args: argparse.Namespace, texts: list[str], ids: list[Ids], vectors: np.ndarray
) -> dict[str, Any]:
    document: dict[str, Any] = {
        "version": 1,
        "model": args.model,
        "dimensions": int(vectors.shape[1]),
        "texts": [
            {
                "text": text,
                "tokens": len(one.tokens),
                "cut": one.length - len(one.tokens),
                "vector": [float(str(value)) for value in vector],
            }
            for text, one, vector in zip(texts, ids, vectors, strict=True)
        ],
    }
    if args.similarity:
        document["similarity"] = [
            [round(float(value), 6) for value in row] for row in vectors @ vectors.T
        ]
    return document


def _table(texts: list[str], cosines: np.ndarray) -> Iterator[str]:
    """A row for each text: its number, its cosines with all texts, and how it begins."""
    width = len(str(len(texts)))
    yield " ".join([" " * width, *(f"{k:>7}" for k in range(1, len(texts) + 1))])
    for k, (text, row) in enumerate(zip(texts, cosines, strict=True), 1):
        numbers = (f"{value:7.4f}" for value in row)
        yield " ".join([f"{k:>{width}}", *numbers, f" {_short(text)}"])


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:57]}..."
