"""What writers of Python, NumPy and PyTorch mean by names that Linnet does not have."""

from __future__ import annotations

from linnet.diagnostics import Edit, Help
from linnet.syntax import tree
from linnet.types import Pack, TensorType

# Names of other tensor libraries: the dtype here, or the form to write.
_DTYPES = {
    "float": "f32", "float16": "f16", "half": "f16", "bfloat16": "bf16", "float32": "f32",
    "float64": "f64", "double": "f64", "int": "i32", "int8": "i8", "int16": "i16", "int32": "i32",
    "int64": "i64", "long": "i64", "uint8": "u8", "byte": "u8", "uint16": "u16", "uint32": "u32",
    "uint64": "u64", "boolean": "bool", "size_t": "i64", "usize": "i64",
}  # fmt: skip
_FORMS = {
    "arange": "iota<i64>(N)", "range": "0..n", "zeros": "fill<f32>([..], 0.0)",
    "ones": "fill<f32>([..], 1.0)", "full": "fill([..], value)", "where": "select(c, a, b)",
    "cat": "concat(a, b, axis = 0)", "concatenate": "concat(a, b, axis = 0)",
    "view": "reshape(x, [..])", "swapaxes": "permute(x, [1, 0])", "expand": "broadcast_to(x, [..])",
    "squeeze": "reshape(x, [..])", "unsqueeze": "reshape(x, [..])", "flatten": "reshape(x, [..])",
    "maximum": "max(a, b)", "minimum": "min(a, b)", "mean": "(sum[i] x[i]) / cast<f32>(N)",
    "einsum": "let c[m, n] = sum[k] a[m, k] * b[k, n]", "pow": "exp(log(x) * y)",
    "take": "let y[i] = x[at[i]]", "astype": "cast<f32>(x)", "len": "the generic that is its size",
}  # fmt: skip

# The word alone is replaced.
_WORDS = {"True": "true", "False": "false", "None": "none", "null": "none"}

_MODULES = ("torch", "np", "numpy", "jnp", "jax", "math", "nn", "F", "tf")

_REDUCED = "a reduction names its indices: `{of}[i] x[i]`, or `let y[i] = {of}[j] x[i, j]`"

_NOTATION = "write it in index notation: `let y[i, j] = sum[k] a[i, k] * b[k, j]`"
_MOVED = "name the axes: `reshape(x, [...])`, `permute(x, [...])`, or `let y[j, i] = x[i, j]`"
_FILLED = "write `fill<f32>([...], {of})`, with a shape and a dtype"
_CAST = "write `cast<{of}>({x})`"

_CALLS = {
    "sum": _REDUCED.format(of="sum"),
    "prod": _REDUCED.format(of="prod"),
    "any": _REDUCED.format(of="any"),
    "all": _REDUCED.format(of="all"),
    "amax": _REDUCED.format(of="max"),
    "amin": _REDUCED.format(of="min"),
    "bmm": _NOTATION,
    "mm": _NOTATION,
    "rearrange": _MOVED,
    "zeros_like": _FILLED.format(of="0.0"),
    "ones_like": _FILLED.format(of="1.0"),
    "stack": "give each a new axis, then `concat(a, b, axis = 0)`",
    "clamp": "write `min(max(x, low), high)`",
    "clip": "write `min(max(x, low), high)`",
}

_METHODS = {
    "max": _REDUCED.format(of="max"),
    "min": _REDUCED.format(of="min"),
    "reshape": "write `reshape({x}, [...])`, with every size",
    "permute": "write `permute({x}, [...])`, with every axis",
    "transpose": "write `permute({x}, [...])`, with every axis",
    "T": "write `permute({x}, [1, 0])`, with every axis",
    "mT": "write `permute({x}, [...])`, with every axis",
    "t": "write `permute({x}, [1, 0])`, with every axis",
    "contiguous": "a tensor has no layout: leave it out",
    "detach": "a program has no gradients: leave it out",
    "clone": "tensors are values: leave it out",
    "item": "a tensor of one element is read by its index: `{x}[0]`",
    "matmul": _NOTATION,
    "to": _CAST.replace("{of}", "f32"),
    "type": _CAST.replace("{of}", "f32"),
    "half": _CAST.replace("{of}", "f16"),
    "bfloat16": _CAST.replace("{of}", "bf16"),
    "float": _CAST.replace("{of}", "f32"),
    "double": _CAST.replace("{of}", "f64"),
    "int": _CAST.replace("{of}", "i32"),
    "long": _CAST.replace("{of}", "i64"),
    "bool": "compare: `{x} != 0.0`",
}


def name_help(name: tree.Name | tree.Ident, place: str) -> Help | None:
    """What is written here for a name of another language; `place` as for `imports.that_brings`."""
    text, at = name.text, name.span
    if text in _DTYPES:
        dtype = _DTYPES[text]
        return Help(f"the dtype is called `{dtype}`", (Edit(at, dtype),), place == "type")
    if text in _WORDS:
        return Help(f"write `{_WORDS[text]}`", (Edit(at, _WORDS[text]),), True)
    if text in _MODULES:
        return Help(
            "no Python module is known here; `std` has layers, the prelude `exp`, `max`, ..."
        )
    if place == "call":
        return _call_help(text)
    if place == "value" and len(text) == 1 and text.isupper():
        return Help(f"a size is declared as a generic: `<{text}: Dim>`")
    return None


def _call_help(name: str) -> Help | None:
    if name in _FORMS:
        return Help(f"it is written `{_FORMS[name]}`")
    return Help(_CALLS[name]) if name in _CALLS else None


def is_call(name: str) -> bool:
    """Whether its arguments are another language's too."""
    return name in _FORMS or name in _CALLS or name in _METHODS or name in _MODULES


def method_help(name: str, base: str) -> Help | None:
    """How Linnet writes what a method of a tensor does elsewhere."""
    if name in _METHODS:
        return Help(_METHODS[name].replace("{x}", base))
    return _call_help(name)


def member_help(name: str, base: str, found: object) -> Help | None:
    """How Linnet writes what an attribute of a tensor tells elsewhere."""
    if not isinstance(found, TensorType):
        return None
    if name in ("shape", "size", "ndim"):
        sizes = ", ".join(f"`{a}`" for a in found.shape if not isinstance(a, Pack))
        if not sizes:
            return Help("its type tells its sizes; they are numbers that the checker knows")
        return Help(f"its type tells its sizes, which are values too: {sizes}")
    if name == "dtype":
        return Help(f"its type tells its dtype, `{found.dtype}`")
    return method_help(name, base)
