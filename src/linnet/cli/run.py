"""`linnet run`: one answer from a model, streamed to the terminal."""

from __future__ import annotations

import argparse
import json
import sys

from linnet.cli.model import (
    Answer,
    add_model_arguments,
    check_arguments,
    load_model,
    open_model,
)
from linnet.diagnostics import LinnetError

EPILOG = """\
The prompt is read from standard input when it is not given. A model without a chat template
continues it. The answer goes to standard output; progress and tokens/s go to standard error.
Greedy unless --temperature is above 0.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    add_model_arguments(parser, new_tokens=256)
    prompt = parser.add_argument("prompt", metavar="[PROMPT]", help="what to ask")
    # Not `nargs="?"`: argparse would take it for absent where an option follows MODEL.
    prompt.required = False
    parser.add_argument("--raw", action="store_true", help="no chat template: continue the prompt")
    parser.add_argument("--json", action="store_true", help="one JSON document at the end instead")


def run(args: argparse.Namespace) -> int:
    from linnet.nest.progress import TextProgress
    from linnet.nest.resolve import resolve
    from linnet.serve.generation import ENTRIES, Generator

    sampling = check_arguments(args)
    card = resolve(args.model, progress=TextProgress(sys.stderr))
    prompt = args.prompt if args.prompt is not None else sys.stdin.read()
    if not prompt.strip():
        raise LinnetError("the prompt is empty: give one, or pipe it to standard input")
    opened = open_model(args, card)
    text = opened.text
    if args.raw or text.template is None:
        ids = text.encode(prompt)
    else:
        ids = text.encode_chat([{"role": "user", "content": prompt}])
    count = _room(card.generics.get("MaxSeq"), len(ids), args.max_new_tokens)
    answer = Answer(len(ids))
    model, answer.load_seconds = load_model(args, opened, len(ids) + count, ENTRIES)
    stream = text.stream()
    interrupted = False
    try:
        for token in answer.follow(Generator(model).tokens(ids, count, sampling), text.eos):
            piece = stream.push(token)
            answer.text += piece
            if not args.json:
                print(piece, end="", flush=True)
    except KeyboardInterrupt:
        interrupted, answer.reason = True, "interrupted"
    rest = stream.finish()
    answer.text += rest
    _report(args, answer, rest)
    return 130 if interrupted else 0


def _room(context: int | str | None, prompt: int, wanted: int) -> int:
    """How many tokens may be generated; the prompt must leave room for one."""
    if not isinstance(context, int):
        return wanted
    if prompt + 1 > context:
        raise LinnetError(
            f"the prompt is {prompt} tokens long and the model's context holds {context}: "
            f"shorten the prompt to {context - 1} tokens or fewer"
        )
    if prompt + wanted > context:
        print(
            f"linnet: the context holds {context} tokens, so at most {context - prompt} new ones "
            f"follow the prompt's {prompt}",
            file=sys.stderr,
        )
    return min(wanted, context - prompt)


def _report(args: argparse.Namespace, answer: Answer, rest: str) -> None:
    if args.json:
        document = {
            "version": 1,
            "model": args.model,
            "text": answer.text,
            "tokens": answer.tokens,
            "prompt_tokens": answer.prompt_tokens,
            "generated_tokens": len(answer.tokens),
            "finish_reason": answer.reason,
            "load_seconds": round(answer.load_seconds, 3),
            "first_token_seconds": round(answer.first_token_seconds, 4),
            "decode_seconds": round(answer.decode_seconds, 4),
            "tokens_per_second": round(answer.tokens_per_second, 2),
        }
        print(json.dumps(document, ensure_ascii=False, indent=2))
        return
    print(rest, flush=True)
    print(answer.figures(), file=sys.stderr)
