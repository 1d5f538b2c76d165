"""The subcommands of `python -m linnet.nest`: a module each, with `add_arguments` and `run`."""

from __future__ import annotations

# Name -> module with `add_arguments(parser)` and `run(args) -> int`, and one line of help. The
# modules are imported to read a command line: what is heavy is imported in `run`.
COMMANDS: dict[str, tuple[str, str]] = {
    "pull": ("linnet.nest.commands.pull", "fetch a model's weights; prints where they lie"),
    "list": ("linnet.nest.commands.list", "the models of the zoo, one a line"),
    "convert": ("linnet.nest.commands.convert", "make a card from a checkpoint's configuration"),
    "push": ("linnet.nest.commands.push", "upload a card, its source and weights to the Hub"),
    "check": ("linnet.nest.commands.check", "everything that is wrong with cards"),
    "verify": ("linnet.nest.commands.verify", "check a proof of loading against the files"),
    "index": ("linnet.nest.commands.index", "the catalogue of a zoo, as JSON"),
    "preview": ("linnet.nest.commands.preview", "drawings of cards' main entries, light and dark"),
    "sample": ("linnet.nest.commands.sample", "a card's samples.json, beside transformers"),
    "validate": ("linnet.nest.commands.validate", "a card's figures, beside transformers"),
}
