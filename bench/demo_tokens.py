"""The demo's answer by transformers: the expected ids of tests/fixtures/demo.json.

    python bench/demo_tokens.py [--write]

transformers reads the very GGUF file that the demo reads, in f32, and decodes greedily. Without
--write the script compares what it finds with the fixture.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

FIXTURE = Path(__file__).parent.parent / "tests" / "fixtures" / "demo.json"
MODEL = "smollm2-135m-instruct"
PROMPT = "Explain in two sentences why the sky is blue."
COUNT = 72


def transformers_model(gguf: Path) -> Any:
    """transformers' model of a GGUF file, f32, eager."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32
    ).eval()


def greedy(gguf: Path, ids: list[int], count: int) -> list[int]:
    """`count` tokens after the prompt, each the most likely one; end tokens do not stop it."""
    import torch

    model = transformers_model(gguf)
    tokens: list[int] = []
    with torch.inference_mode():
        out = model(torch.tensor([ids]), use_cache=True)
        for _ in range(count):
            tokens.append(int(out.logits[0, -1].argmax()))
            out = model(torch.tensor([tokens[-1:]]), cache=out.cache, use_cache=True)
    return tokens


def main() -> None:
    from transformers import AutoTokenizer

    from linnet.nest.card import find_card
    from linnet.nest.fetch import fetch_weights

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the fixture")
    args = parser.parse_args()
    gguf = fetch_weights(find_card(MODEL)).files[0]
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    chat = [{"role": "user", "content": PROMPT}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    tokens = greedy(gguf, list(ids), COUNT)
    document = {
        "model": MODEL,
        "prompt": PROMPT,
        "prompt_ids": list(ids),
        "tokens": tokens,
        "text": tokenizer.decode(tokens),
    }
    if args.write:
        FIXTURE.write_text(json.dumps(document, indent=1) + "\n")
        print(f"wrote {FIXTURE}")
    else:
        same = json.loads(FIXTURE.read_text()) == document
        print("the fixture agrees" if same else "the fixture differs")
        raise SystemExit(0 if same else 1)
    print(document["text"])


if __name__ == "__main__":
    main()
