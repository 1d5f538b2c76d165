"""How generated code may differ: where a module is trained, and by where its weights lie."""

from __future__ import annotations

from dataclasses import dataclass

from linnet.core.ir import Param


@dataclass(frozen=True, slots=True)
class Variant:
    """`rebinding`: a state is assigned its new value, and no tensor is written into.
    `checkpointed`: blocks of arrays run again for the backward pass. `adapted`: the weights that
    may have LoRA adapters, `*` for positions. `siblings`: products of one input are one over
    weights that lie side by side, except those of the paths `apart`. `split`: the program is one
    shard's, and its collectives speak with the others.
    """

    rebinding: bool = False
    checkpointed: bool = False
    adapted: frozenset[str] = frozenset()
    siblings: bool = True
    apart: frozenset[str] = frozenset()
    split: bool = False

    def adapts(self, param: Param) -> bool:
        """Whether the member may have an adapter: some adapted path ends in its own."""
        if param.kind != "param":
            return False
        return any(path == param.name or path.endswith(f".{param.name}") for path in self.adapted)


PLAIN = Variant()
