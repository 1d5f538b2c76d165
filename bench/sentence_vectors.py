"""How far our sentence vectors are from those of transformers on the same weights, in f32.

    python bench/sentence_vectors.py

transformers' AutoModel reads the card's own file; its hidden states are averaged and normalised, as
sentence-transformers does. The figures stand in the card's README.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

MODEL = "all-MiniLM-L6-v2"
SENTENCES = [
    "A man is eating food.",
    "A man is eating a piece of bread.",
    "A cheetah is running behind its prey.",
    "Grüße aus Zürich: naïve café, 日本語, 🙂",
    "",
    "The quick brown fox jumps over the lazy dog. " * 20,
    "one " * 300,
]
LIMIT = 256


def theirs(folder: Path, sentences: list[str]) -> tuple[list[Any], Any, list[list[int]]]:
    """transformers' hidden states and vectors, one sentence at a time, and the ids it read."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = AutoModel.from_pretrained(str(folder), attn_implementation="eager").eval()
    hidden: list[Any] = []
    ids: list[list[int]] = []
    with torch.inference_mode():
        for sentence in sentences:
            given = tokenizer(sentence, truncation=True, max_length=LIMIT, return_tensors="pt")
            ids.append(given["input_ids"][0].tolist())
            hidden.append(model(**given).last_hidden_state)
        means = torch.cat([states.mean(1) for states in hidden])
        vectors = torch.nn.functional.normalize(means, dim=1)
    return [states.numpy() for states in hidden], vectors.numpy(), ids


def compare(sentences: list[str] = SENTENCES) -> tuple[float, float, Any]:
    """The largest differences of hidden states and of vectors, and our vectors."""
    import numpy as np
    import torch

    from linnet import nest
    from linnet.cli.embed import Ids, embed
    from linnet.nest.card import find_card
    from linnet.nest.fetch import fetch_weights

    folder = fetch_weights(find_card(MODEL)).files[0].parent
    hidden, vectors, ids = theirs(folder, sentences)
    model = nest.load(MODEL, numerics="equivalent")
    far = 0.0
    for one, states in zip(ids, hidden, strict=True):
        tokens = torch.tensor([one], dtype=torch.int32)
        ours = model(tokens, torch.zeros_like(tokens)).numpy()
        far = max(far, float(np.abs(ours - states).max()))
    found = embed(model, [Ids(one, [0] * len(one), len(one)) for one in ids])
    return far, float(np.abs(found - vectors).max()), found


def main() -> None:
    hidden, vector, found = compare()
    print(f"hidden states: max difference {hidden:.2e}")
    print(f"sentence vectors: max difference {vector:.2e}")
    print(f"cosine of {SENTENCES[0]!r} and {SENTENCES[1]!r}: {found[0] @ found[1]:.4f}")


if __name__ == "__main__":
    main()
