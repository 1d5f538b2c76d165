"""What checking the seed's package must prove, collected by hand from its sources.

Each row is (extra facts of the function, goals). `N`, `K` and `D` stand for `Heads / Shards`,
`KvHeads / Shards` and `H / Heads`, which are written out in the goals as the checker meets them.
"""

from __future__ import annotations

ATTENTION = """
Shards > 0, Heads % Shards == 0, KvHeads % Shards == 0, KvHeads / Shards > 0,
(Heads / Shards) % (KvHeads / Shards) == 0, Heads > 0, KvHeads > 0, H % Heads == 0,
Heads % KvHeads == 0, (H / Heads) % 2 == 0, MaxSeq > 0, Batch > 0, PageSize > 0
"""
LAYER = ATTENTION + ", Inner % Shards == 0"
MODEL = LAYER + ", Vocab % Shards == 0"

N = "Heads / Shards"
K = "KvHeads / Shards"
D = "H / Heads"


def heads(b: str, s: str, n: str) -> list[str]:
    """split_heads and merge_heads over `[b, s]` with `n` heads."""
    return [
        f"({n}) * ({D}) == {n} * ({D})",
        f"({b}) * ({s}) * ({n} * ({D})) == ({b}) * ({s}) * ({n}) * ({D})",
        f"({b}) * ({s}) * ({n}) * ({D}) == ({b}) * ({s}) * (({n}) * ({D}))",
        f"{n} >= 0",
        f"({n}) * ({D}) >= 0",
    ]


def grouped(b: str, s: str, kv: str) -> list[str]:
    """grouped_attention of std on these heads: its clauses and the shapes inside."""
    return [
        f"{K} > 0",
        f"({N}) % ({K}) == 0",
        f"({K}) * (({N}) / ({K})) == {N}",
        f"({b}) * ({N}) * ({s}) * ({D}) == ({b}) * ({K}) * (({N}) / ({K})) * ({s}) * ({D})",
        f"({b}) * ({K}) * (({N}) / ({K})) * ({s}) * ({kv}) == ({b}) * ({N}) * ({s}) * ({kv})",
    ]


ROPE = [f"({D}) % 2 == 0", f"({D}) / 2 + ({D}) / 2 == {D}", f"({D}) / 2 <= {D}", f"0 <= ({D}) / 2",
        f"{D} - ({D}) / 2 == ({D}) / 2", "2 > 0", f"2 * (({D}) / 2) == {D}"]  # fmt: skip

DIVISORS = ["Shards > 0", "Heads > 0", f"{K} > 0", "KvHeads > 0"]

WIDTHS = [
    f"{N} * ({D}) == {N} * ({D})",
    f"{K} * ({D}) == ({K}) * ({D})",
    f"Shards * ({N}) == Heads",
    f"Shards * ({K}) == KvHeads",
    f"{N} * ({D}) * Shards == H",
    f"Heads * ({D}) == H",
    f"KvHeads * (Heads / KvHeads) * ({D}) == H",
    f"{N} > 0",
    f"{N} >= {K}",
]

ATTENTION_ROWS: list[tuple[str, list[str]]] = [
    ("", DIVISORS + WIDTHS + ROPE),
    # forward<B, S>
    ("", heads("B", "S", N) + heads("B", "S", K) + grouped("B", "S", "S")),
    # decode
    (
        "",
        ["H / Heads == 1 * (H / Heads)", "1 * MaxSeq == MaxSeq", "MaxSeq > 0", "1 > 0"]
        + heads("Batch", "1", N)
        + heads("Batch", "1", K)
        + grouped("Batch", "1", "MaxSeq"),
    ),
    # prefill<S>
    (
        "S > 0",
        ["S > 0", "MaxSeq > 0"]
        + heads("Batch", "S", N)
        + heads("Batch", "S", K)
        + grouped("Batch", "S", "MaxSeq"),
    ),
    # decode_rows
    (
        "",
        [f"Batch * ({D}) == Batch * 1 * ({D})", "Batch * MaxSeq == Batch * 1 * MaxSeq"]
        + grouped("Batch", "1", "MaxSeq"),
    ),
    # prefill_slots<M, S>
    ("M > 0, S > 0", ["S > 0", "M > 0"] + heads("M", "S", N) + grouped("M", "S", "S")),
    # prefill_packed<P>, packed<P>
    ("P > 0", ["P > 0"] + heads("1", "P", N) + heads("1", "P", K) + grouped("1", "P", "P")),
    # step_packed<P>
    (
        "P > 0",
        [
            "P + Batch > 0",
            "Batch + P == P + Batch",
            "0 <= P",
            "P <= P + Batch",
            "0 <= 0",
            "P + Batch <= P + Batch",
            "P + Batch - P == Batch",
            "P - 0 == P",
            "P + Batch >= 0",
        ]
        + heads("1", "P + Batch", N)
        + heads("1", "P + Batch", K)
        + grouped("1", "P", "P")
        + grouped("Batch", "1", "MaxSeq"),
    ),
    # decode_paged<Rows, Pages>
    (
        "Rows > 0",
        ["PageSize > 0", "0 <= 1", "1 <= Batch", "1 - 0 == 1", f"Rows * ({D}) == Rows * 1 * ({D})"]
        + heads("Rows", "1", N)
        + grouped("Rows", "1", "Pages * PageSize"),
    ),
    # prefill_paged<P, Rows, Pages>
    ("P > 0", ["1 <= Batch", "PageSize > 0"] + grouped("1", "P", "Pages * PageSize")),
    # step_paged<P, Rows, Pages>
    (
        "P > 0, Rows > 0",
        [
            "P + Rows > 0",
            "Rows + P == P + Rows",
            "0 <= P",
            "P <= P + Rows",
            "P + Rows - P == Rows",
            "P + Rows <= P + Rows",
            "1 <= Batch",
        ]
        + heads("1", "P + Rows", N),
    ),
]

LAYER_ROWS: list[tuple[str, list[str]]] = [
    ("", ["Shards * (Inner / Shards) == Inner", "Inner / Shards >= 0"]),
    *ATTENTION_ROWS,
]

MODEL_ROWS: list[tuple[str, list[str]]] = [
    # forward<B, S>
    (
        "",
        [
            "B * S * H == B * S * H",
            "B * S * (Shards * (Vocab / Shards)) == B * S * Vocab",
            "Shards * (Vocab / Shards) == Vocab",
        ],
    ),
    # next_token<B, S>, prefill<S>
    ("S > 0", ["0 <= S - 1", "S - 1 < S", "S - 1 >= 0"]),
    # step, decode_rows: x[:, 0, :] of [Batch, 1, H]
    ("", ["0 < 1", "Batch * 1 == Batch"]),
    # packed_states, prefill_packed<P>
    ("P > 0", ["P == 1 * P", "1 * P * H == P * H", "0 < 1"]),
    # step_packed<P>
    (
        "P > 0",
        [
            "Batch * 1 == Batch",
            "P + Batch == 1 * (P + Batch)",
            "P <= P + Batch",
            "0 <= P",
            "P + Batch - P == Batch",
            "Batch + Batch == 2 * Batch",
            "2 * Batch >= 0",
        ],
    ),
    # step_paged<P, Rows, Pages>
    (
        "P > 0, Rows > 0",
        [
            "Rows * 1 == Rows",
            "P + Rows == 1 * (P + Rows)",
            "P + Rows - P == Rows",
            "Rows + (P + Rows - P) == 2 * Rows",
        ],
    ),
    # generate<Steps>: reshape(next, [Batch, 1])
    ("Steps > 0", ["Batch == Batch * 1", "0 <= Steps"]),
    *LAYER_ROWS,
]
