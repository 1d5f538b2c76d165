"""Two blocks that implement one trait: each has what it provides, over its own state."""

from __future__ import annotations

import numpy as np

from backends.common import agree, lowered

TEXT = """module m
use std.nn.cache::{write_at}

pub trait Decoder<V: Dim, H: Dim, MaxSeq: Dim, T: Float>
where MaxSeq > 0, V > 1, H > 0 {
    fn hidden<B: Dim>(tokens: Tensor[B; i32], at: i32) -> Tensor[B, MaxSeq, H; T]
    where B > 0

    fn head(scale: f32 = 2.0) -> Tensor[V, H; T]

    /// The scores of what follows.
    pub entry decode<B: Dim>(tokens: Tensor[B; i32], at: i32) -> Tensor[B, V; T]
    where B > 0 {
        let x = hidden(tokens, at)
        let again = hidden(tokens, at + 1)
        return scores(x[:, MaxSeq - 1, :] + again[:, 0, :])
    }

    fn scores<N: Dim>(x: Tensor[N, H; T]) -> Tensor[N, V; T] {
        let w = head()
        let y[n, v] = sum[h] x[n, h] * w[v, h] + part(x[n, 0])
        return y
    }

    fn part(x: T) -> T {
        return x * 0.5
    }
}

pub block Cached<Words: Dim, B: Dim, U: Float = f32>
where Words > 1, B > 0 {
    impl Decoder<Words, 2 * B, 4, U>

    param table: Tensor[Words, 2 * B; U]
    state cache: Tensor[1, 1, 4, 2 * B; U]
    state count: i32

    fn hidden<N: Dim>(tokens: Tensor[N; i32], at: i32) -> Tensor[N, 4, 2 * B; U]
    where N > 0 {
        let row[h] = table[tokens[0], h] + cast<U>(count)
        cache = write_at(cache, reshape(row, [1, 1, 1, 2 * B]), at)
        count = count + 1
        let x[n, s, h] = cache[0, 0, s, h] + table[tokens[n], h]
        return x
    }

    fn head(scale: f32) -> Tensor[Words, 2 * B; U] {
        return table * cast<U>(scale)
    }

    pub entry forward(tokens: Tensor[2; i32], at: i32) -> Tensor[2, Words; U] {
        let first = decode(tokens, at)
        return first + decode(tokens, at)
    }
}

pub block Plain<T: Float> {
    impl Decoder<3, 5, 2, T>

    param left: Tensor[5, 3; T]
    state seen: Tensor[2, 5; T]

    fn hidden<B: Dim>(tokens: Tensor[B; i32], at: i32) -> Tensor[B, 2, 5; T]
    where B > 0 {
        let added[s, h] = seen[s, h] * 0.5 + left[h, tokens[0]]
        seen = added
        let x[b, s, h] = seen[s, h] + cast<T>(at + tokens[b])
        return x
    }

    fn head(scale: f32) -> Tensor[3, 5; T] {
        return permute(left, [1, 0])
    }
}

pub block Both {
    sub one: Cached<7, 3>
    sub many: [Plain<f32>; 2]

    pub entry forward(tokens: Tensor[2; i32], at: i32) -> (Tensor[2, 7; f32], Tensor[2, 3; f32]) {
        var total = fill<f32>([2, 3], 0.0)
        static for each in many {
            total = total + each.decode(tokens, at)
        }
        return (one.decode(tokens, at), total)
    }
}
"""

TOKENS = np.array([2, 1], np.int32)


def test_each_block_has_its_own_state() -> None:
    cached = lowered(TEXT, root="Cached", generics={"Words": 5, "B": 2})
    plain = lowered(TEXT, root="Plain", generics={"T": "f32"})
    calls = [("decode", [TOKENS, 0]), ("decode", [TOKENS[:1], 2]), ("decode", [TOKENS, 1])]
    made = agree(cached, [*calls, ("forward", [TOKENS, 1])])[-1]
    assert int(made.get_buffer_at("count")) == 10
    agree(plain, calls)


def test_blocks_that_are_held() -> None:
    program = lowered(TEXT, root="Both")
    agree(program, [("forward", [TOKENS, 0]), ("forward", [TOKENS, 2])])


def test_entries_are_those_of_the_block() -> None:
    program = lowered(TEXT, root="Cached", generics={"Words": 5, "B": 2})
    assert list(program.entries) == ["forward", "decode"]
    assert program.main == "forward"
    decode = program.entries["decode"]
    assert decode.docs == "The scores of what follows."
    assert decode.name == "Cached.decode" and decode.block == "Cached<5, 2, f32>"
    assert set(decode.writes) == {"cache", "count"}
