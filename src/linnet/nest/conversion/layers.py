"""Settings that several keys state together: heads, windows, biases, positions."""

from __future__ import annotations

from typing import cast

from linnet.nest.conversion.reader import ABSENT, Reader, shown

FULL, WINDOWED = "full_attention", "sliding_attention"
MAX_SEQ = 8192


def heads(
    reader: Reader,
    *,
    shared_default: int | None = None,
    has_width: bool = False,
    width_default: int | None = None,
) -> None:
    """KvHeads, and HeadDim where the package has it and it is not H / Heads.

    With a default width of its own, HeadDim has none in the package and is always bound.
    """
    hidden, count = int(reader.generics["H"]), int(reader.generics["Heads"])
    _shared(reader, count, shared_default)
    stated = reader.get("head_dim")
    if stated is ABSENT and width_default is not None:
        reader.generic("HeadDim", width_default, "head_dim")
        return
    reader.origins["HeadDim"] = ("hidden_size", "num_attention_heads")
    if stated is ABSENT:
        if hidden % count:
            reader.problem(
                f"{reader.stated('hidden_size', 'num_attention_heads')}: not a multiple, and no "
                "`head_dim` gives a width"
            )
        elif (hidden // count) % 2:
            reader.problem(
                f"{reader.stated('hidden_size', 'num_attention_heads')}: heads {hidden // count} "
                "wide; rotary positions need an even width"
            )
        return
    wide = reader.size("head_dim", default=None)
    if wide % 2:
        reader.problem(f"{reader.stated('head_dim')}: rotary positions need an even width")
    if not has_width and wide * count != hidden:
        reader.problem(
            f"{reader.stated('head_dim')}; the package `{reader.family}` supports "
            f"`hidden_size` / `num_attention_heads`, {hidden / count:g}"
        )
    elif has_width and (width_default is not None or wide * count != hidden):
        reader.generic("HeadDim", wide, "head_dim")


def _shared(reader: Reader, count: int, default: int | None) -> None:
    """KvHeads: stated, or transformers' default where the key is absent; null is one for each."""
    if default is None or "num_key_value_heads" in reader.config:
        default = count
    shared = reader.size("num_key_value_heads", default=default)
    reader.generic("KvHeads", shared, "num_key_value_heads")
    if count % shared:
        reader.problem(
            f"{reader.stated('num_attention_heads')}, not a multiple of the {shared} of "
            "`num_key_value_heads`"
        )


def positions(reader: Reader, default: int) -> None:
    """MaxSeq, what the caches hold: the checkpoint's context, MAX_SEQ at most."""
    stated = reader.size("max_position_embeddings", default=default)
    reader.generic("Batch", 1)
    reader.generic("MaxSeq", min(stated, MAX_SEQ), "max_position_embeddings")
    if stated > MAX_SEQ:
        reader.note(
            f"MaxSeq is {MAX_SEQ}, for caches of a moderate size: `max_position_embeddings` is "
            f'{stated}, and generics={{"MaxSeq": N}} gives longer ones'
        )


def window_everywhere(reader: Reader, default: int | None) -> None:
    """WINDOW is `sliding_window`, on every layer; null is none."""
    window = _window(reader, default)
    listed = _layer_types(reader)
    wanted = FULL if window is None else WINDOWED
    if listed is not None and any(kind != wanted for kind in listed):
        reader.problem(
            f"{reader.stated('layer_types', 'sliding_window')}: every layer is "
            f"{shown(wanted)} in {reader.config.get('model_type')}"
        )
    _set_window(reader, window)


def no_window(reader: Reader) -> None:
    """Every layer attends to all positions before."""
    listed = _layer_types(reader)
    if listed is not None and any(kind != FULL for kind in listed):
        reader.problem(f"{reader.stated('layer_types')}: every layer is {shown(FULL)} in llama")


def window_by_layer(reader: Reader) -> None:
    """WINDOW is Qwen's, which must reach all layers or none: `use_sliding_window` switches it on.

    `layer_types` says which layers have it, else those from `max_window_layers` on.
    """
    used = reader.flag("use_sliding_window", default=False)
    window = _window(reader, 4096) if used else None
    reader.get("sliding_window")
    first = reader.size("max_window_layers", default=28, least=0)
    count = int(reader.generics["Layers"])
    listed = _layer_types(reader)
    if listed is None:
        windowed = [window is not None and layer >= first for layer in range(count)]
        key = "max_window_layers"
    else:
        windowed = [kind == WINDOWED for kind in listed]
        key = "layer_types"
    if any(windowed) and not all(windowed):
        reader.problem(
            f"{reader.stated('use_sliding_window', key)}: {sum(windowed)} of {count} layers have a "
            f"window; the package `{reader.family}` supports one on all layers or on none"
        )
    elif any(windowed) and window is None:
        reader.problem(
            f"{reader.stated('layer_types')}, but no window is on: "
            f"{reader.stated('use_sliding_window')}"
        )
    else:
        _set_window(reader, window if any(windowed) else None)


def window_by_period(reader: Reader) -> None:
    """WINDOW and Period of Gemma 3: every Period-th layer is full, the others have the window."""
    window = _window(reader, 4096)
    if window is None:
        reader.problem(
            f"{reader.stated('sliding_window')}; the package `{reader.family}` needs a window"
        )
    _set_window(reader, window)
    stated = reader.size("sliding_window_pattern", default=6)
    listed = _layer_types(reader)
    if listed is None:
        hidden = reader.size("_sliding_window_pattern", default=stated)
        if hidden != stated:
            reader.problem(
                f"{reader.stated('_sliding_window_pattern')}, which transformers does not read; "
                "`layer_types` or `sliding_window_pattern` gives the pattern"
            )
        reader.generic("Period", stated, "sliding_window_pattern")
        return
    reader.get("_sliding_window_pattern")
    period = listed.index(FULL) + 1 if FULL in listed else max(len(listed) + 1, stated)
    regular = [FULL if (i + 1) % period == 0 else WINDOWED for i in range(len(listed))]
    if listed != regular:
        reader.problem(
            f"{reader.stated('layer_types')}; the package `{reader.family}` supports a full layer "
            "after equally many with a window, each time"
        )
    if "sliding_window_pattern" in reader.config and FULL in listed and stated != period:
        reader.problem(
            f"{reader.stated('sliding_window_pattern')}, and by `layer_types` every {period}th "
            "layer is full: two spellings of one setting that disagree"
        )
    reader.generic("Period", period, "layer_types")


def _window(reader: Reader, default: int | None) -> int | None:
    """The stated window; null is none, an absent key is `default`."""
    if "sliding_window" in reader.config and reader.config["sliding_window"] is None:
        reader.get("sliding_window")
        return None
    if "sliding_window" not in reader.config:
        return default
    return reader.size("sliding_window", default=default)


def _set_window(reader: Reader, window: int | None) -> None:
    reader.constant("WINDOW", window or 0, "sliding_window")


def _layer_types(reader: Reader) -> list[str] | None:
    """The kind of each layer, one for each; None where they are not listed."""
    value = reader.get("layer_types")
    if value is ABSENT:
        return None
    whole = isinstance(value, list) and all(kind in (FULL, WINDOWED) for kind in value)
    if not whole:
        reader.problem(
            f"{reader.stated('layer_types')}: it must list {shown(FULL)} or {shown(WINDOWED)} for "
            "each layer"
        )
        return None
    kinds = cast("list[str]", value)
    if len(kinds) != reader.generics["Layers"]:
        reader.problem(
            f"`layer_types` lists {len(kinds)} layers and `num_hidden_layers` is "
            f"{reader.generics['Layers']}"
        )
        return None
    return kinds
