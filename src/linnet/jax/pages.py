"""Pages of a cache `[Batch, KvHeads, MaxSeq, D]` changed where they are."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


@partial(jax.jit, static_argnums=3, donate_argnums=0)
def copied(cache: Any, source: int, target: int, size: int) -> Any:
    """Page `target` of `size` positions is what page `source` is."""
    page = lax.dynamic_slice_in_dim(cache, source * size, size, 2)
    return lax.dynamic_update_slice_in_dim(cache, page, target * size, 2)


@partial(jax.jit, static_argnums=2, donate_argnums=0)
def cleared(cache: Any, page: int, size: int) -> Any:
    """The page holds zeros."""
    shape = (*cache.shape[:2], size, cache.shape[3])
    return lax.dynamic_update_slice_in_dim(cache, jnp.zeros(shape, cache.dtype), page * size, 2)
