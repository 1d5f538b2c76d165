"""State that a parent reads around its child's writes: the old value where it was read before."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import linnet.torch
from linnet.loading import load_source
from linnet.reference import evaluate

SOURCE = """
module m
block Cell {
    state s: Tensor[2; f32]
    pub fn up(x: f32) -> f32 {
        let before = s[0]
        s = s * 0.5 + fill<f32>([2], x)
        return before
    }
}
pub block Root {
    sub c: Cell
    sub cs: [Cell; 2]
    state own: Tensor[2; f32]

    pub entry around(x: f32) -> (f32, f32, f32) {
        let before = c.s[0]
        let first = c.up(x)
        let between = c.s[0]
        let second = c.up(between)
        return (before + first, between + second, c.s[1])
    }
    pub entry arrays(x: f32) -> (f32, Tensor[2; f32]) {
        let kept = cs[1].s
        let a = cs[0].up(x)
        let b = cs[1].up(a + cs[0].s[1])
        let again = cs[0].up(b + kept[0])
        return (again, kept + cs[1].s)
    }
    pub entry loops(x: f32) -> f32 {
        var total = x
        static for cell in cs {
            let old = cell.s[0]
            total = total * 0.5 + cell.up(total) + old + cell.s[1]
        }
        var n = 0
        while n < 3 {
            let old = own
            own = own + fill<f32>([2], total)
            total = total + old[0] + c.up(own[1])
            n = n + 1
        }
        return total
    }
    pub entry swap() -> Tensor[2; f32] {
        let old = own
        own = fill<f32>([2], 1.0)
        let mixed = own + c.s
        own = old
        return mixed
    }
    pub entry kept_and_stored(x: f32) -> (Tensor[2; f32], f32) {
        let old = c.s
        own = c.s
        var total = x
        static for i in 0..2 {
            total = total + c.up(x)
            own = own * 0.5
        }
        return (old, total)
    }
    pub entry choose(x: f32) -> f32 {
        let old = c.s[0]
        let y = if x > 0.0 { c.up(x) } else { cs[0].up(x) }
        return y + old + c.s[0] + cs[0].s[0]
    }
}
"""


def flat(value: object) -> list[np.ndarray]:
    items = value if isinstance(value, tuple) else (value,)
    return [np.asarray(getattr(v, "numpy", lambda v=v: v)()) for v in items]


def test_every_entry_in_any_order_agrees_with_the_reference(tmp_path: Path) -> None:
    path = tmp_path / "m.linnet"
    path.write_text(SOURCE)
    program = load_source(path, policy="exact", optimize=False).program
    draw = np.random.default_rng(5)
    for numerics in ("exact", "fast"):
        module = linnet.torch.load(path, numerics=numerics)
        state: dict[str, np.ndarray] = {}
        for _ in range(40):
            name = str(draw.choice(list(module.entries)))
            inputs = [] if name == "swap" else [np.float32(draw.uniform(-1, 1))]
            wanted = flat(evaluate(program, name, inputs, {}, state))
            found = flat(module.run_entry(name, [float(i) for i in inputs]))
            for a, b in zip(found, wanted, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5, err_msg=name)
            for place, value in state.items():
                held = module.get_buffer_at(place).numpy()
                np.testing.assert_allclose(held, value, rtol=1e-5, atol=1e-5, err_msg=place)
