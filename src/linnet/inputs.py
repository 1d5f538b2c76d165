"""What an entry is called with: its dimensions from the inputs' shapes, everything checked first.

Framework-neutral: an input is its shape and the name of its dtype.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from keyword import iskeyword
from typing import Any

from linnet.core.derive import shape_of
from linnet.core.ir import (
    ArrayType,
    Call,
    Function,
    Gather,
    Node,
    Param,
    Program,
    ResultsType,
    functions_of,
)
from linnet.core.rewrite import nodes_of
from linnet.core.scalars import integer_range
from linnet.diagnostics import PlanError
from linnet.dims import Atom, Dim, Relation
from linnet.source import Span
from linnet.syntax import tree
from linnet.types import BOOL, DType, NoneType, StructType, TensorType, TupleType, Type

Given = tuple[tuple[int, ...], str]
"""The shape of an input and the name of its dtype."""


def find_entry(program: Program, name: str | None = None) -> Function:
    """The entry of this name, or the main one; where there is none, a PlanError lists them."""
    if name is None:
        name = program.main
        if not name:
            listed = ", ".join(program.entries)
            raise PlanError(f"{program.name} has several entries ({listed}): name one")
    if name in program.refused:
        raise PlanError(program.refused[name])
    if name not in program.entries:
        listed = ", ".join(program.entries) or "none"
        raise PlanError(
            f"{program.name} has no entry {name}{near(name, program.entries)}; it has {listed}"
        )
    return program.entries[name]


def near(name: str, known: Iterable[str]) -> str:
    """`; did you mean ...?`, or nothing."""
    close = get_close_matches(name, list(known), 1)
    return f"; did you mean {close[0]}?" if close else ""


def bind_entry(
    function: Function,
    inputs: Sequence[Given],
    generics: Mapping[str, int] | None = None,
    name: str | None = None,
) -> dict[str, int]:
    """The size of every dimension of the entry, all inputs and facts checked.

    Dimensions come from `generics` and from the axes on which they stand alone or are the one
    unknown of a linear expression. Raises PlanError that names the entry, the argument, what was
    found and what was expected.
    """
    call = _Binding(function, name or function.name.rpartition(".")[2])
    call.check_arguments(inputs)
    call.take_generics(generics or {})
    call.solve(inputs)
    call.check_shapes(inputs)
    call.check_facts()
    call.check_demands()
    return call.sizes


def bind_sizes(
    function: Function,
    generics: Mapping[str, int],
    name: str | None = None,
    dynamic: Collection[str] = (),
) -> dict[str, int]:
    """The size of every dimension of the entry, given by name, all facts checked.

    Those in `dynamic` have none, and facts that name them are left to whoever finds their sizes.
    Raises PlanError that names the entry and the dimension.
    """
    call = _Binding(function, name or function.name.rpartition(".")[2])
    call.take_generics(generics)
    missing = [dim for dim in function.dims if dim not in call.sizes and dim not in dynamic]
    if missing:
        many = "have no values" if len(missing) > 1 else "has no value"
        raise PlanError(f"{call.name}: {', '.join(missing)} {many}; every dimension needs one here")
    call.check_facts()
    call.check_demands()
    return call.sizes


class _Binding:
    """One call's sizes while they are found."""

    def __init__(self, function: Function, name: str) -> None:
        self.function = function
        self.name = name
        self.params = [(p, _tensor(p)) for p in function.values]
        self.paths = dict(zip(function.values, leaf_paths(function), strict=True))
        self.sizes: dict[str, int] = {}
        self.origin: dict[str, str] = {}  # where a size came from

    def check_arguments(self, inputs: Sequence[Given]) -> None:
        if len(inputs) != len(self.params):
            named = ", ".join(f"{self.paths[p]}: {type}" for p, type in self.params)
            expected = f"{_count(len(self.params), 'input')} ({named})" if named else "no inputs"
            raise PlanError(f"{self.name} takes {expected}, not {len(inputs)}")
        for (param, type), (shape, dtype) in zip(self.params, inputs, strict=True):
            if dtype != str(type.dtype):
                self._refuse(param, f"is {dtype}, expected {type}", f"convert it to {type.dtype}")
            if len(shape) != len(type.shape):
                found = _count(len(shape), "axis", "axes")
                text = list(shape)
                self._refuse(param, f"has {found} {text}, expected {len(type.shape)}: {type}")

    def take_generics(self, generics: Mapping[str, int]) -> None:
        for name, value in generics.items():
            if name not in self.function.dims:
                own = ", ".join(self.function.dims) or "none"
                hint = near(name, self.function.dims)
                raise PlanError(f"{self.name} has no generic {name}{hint}; its generics: {own}")
            if isinstance(value, bool) or not isinstance(value, int):
                raise PlanError(
                    f"{self.name}: {name} is a dimension and takes an integer, not {value!r}"
                )
            if value < 0:
                raise PlanError(
                    f"{self.name}: {name} = {value} is negative; a dimension is at least 0"
                )
            self.sizes[name] = value
            self.origin[name] = "generics"

    def solve(self, inputs: Sequence[Given]) -> None:
        """Sizes that stand alone first, then linear expressions until nothing new is found."""
        axes = [
            (param, i, axis, size)
            for (param, type), (shape, _) in zip(self.params, inputs, strict=True)
            for i, (axis, size) in enumerate(zip(_dims(type), shape, strict=True))
        ]
        for param, i, axis, size in axes:
            alone = _name_of(axis)
            if alone is not None and alone not in self.sizes:
                self.sizes[alone] = size
                self.origin[alone] = f"axis {i} of {self.paths[param]}"
        found = True
        while found:
            found = False
            for param, i, axis, size in axes:
                unknown = axis.names() - self.sizes.keys()
                if len(unknown) == 1 and self._solve_one(param, i, axis, size, min(unknown)):
                    found = True
        missing = [d for d in self.function.dims if d not in self.sizes]
        if missing:
            named = ", ".join(f"{n!r}: ..." for n in missing)
            raise PlanError(
                f"{self.name}: the inputs do not say what {', '.join(missing)} is: "
                f"pass generics={{{named}}}"
            )

    def _solve_one(self, param: Param, i: int, axis: Dim, size: int, name: str) -> bool:
        """Whether the axis gave this size; the axis is `factor * name + rest`."""
        factor, rest = 0, 0
        for product, coefficient in axis.substitute(self.sizes).terms:
            if not product:
                rest = coefficient
            elif len(product) == 1 and product[0].op == "name":
                factor = coefficient
            else:
                return False
        if factor == 0:
            return False
        value, over = divmod(size - rest, factor)
        if over or value < 0:
            why = "not a whole number" if over else "negative"
            self._refuse(param, f"has {size} on axis {i}, expected {axis}: {name} would be {why}")
        self.sizes[name] = value
        self.origin[name] = f"axis {i} of {self.paths[param]}"
        return True

    def check_shapes(self, inputs: Sequence[Given]) -> None:
        for (param, type), (shape, _) in zip(self.params, inputs, strict=True):
            for i, (axis, size) in enumerate(zip(_dims(type), shape, strict=True)):
                expected = self._value(axis)
                if expected != size:
                    wanted = self._wanted(axis, expected)
                    self._refuse(param, f"has {size} on axis {i}, expected {wanted}")

    def _wanted(self, axis: Dim, expected: int) -> str:
        known = self._known(axis.names(), origin=True)
        if axis.constant is not None:
            return str(axis)
        return known if _name_of(axis) is not None else f"{axis} = {expected} ({known})"

    def check_facts(self) -> None:
        for fact in self.function.facts:
            if fact.names() <= self.sizes.keys() and not fact.holds(self.sizes):
                known = self._known(fact.names(), origin=True)
                how = f"does not hold with {known}" if known else "never holds"
                raise PlanError(f"{self.name} requires {fact}, which {how}")

    def check_demands(self) -> None:
        """What sizes can still break: dimensions below zero, indices into empty axes."""
        for demand in demands(self.function):
            if not demand.goal.names() <= self.sizes.keys() or demand.goal.holds(self.sizes):
                continue
            known = self._known(demand.goal.names(), origin=True)
            at = f" at {place_of(demand.span)}" if demand.span is not None else ""
            if demand.access:
                text = f" `{demand.span.text}`" if demand.span is not None else ""
                raise PlanError(
                    f"{self.name}: the access{text}{at} indexes an axis of size 0"
                    + (f" ({demand.dim} with {known})" if known else "")
                )
            value = demand.dim.evaluate(self.sizes)
            raise PlanError(f"{self.name}: the dimension {demand.dim}{at} is {value} with {known}")

    def _value(self, axis: Dim) -> int:
        try:
            return axis.evaluate(self.sizes)
        except ZeroDivisionError:
            known = self._known(axis.names(), origin=True)
            raise PlanError(
                f"{self.name}: the dimension {axis} divides by zero with {known}"
            ) from None

    def _known(self, names: Iterable[str], origin: bool = False) -> str:
        return ", ".join(
            f"{n} = {self.sizes[n]}" + (f" from {self.origin[n]}" if origin else "")
            for n in self.function.dims
            if n in names
        )

    def _refuse(self, param: Param, found: str, fix: str = "") -> None:
        raise PlanError(f"{self.name}: {self.paths[param]} {found}" + (f"; {fix}" if fix else ""))


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _tensor(param: Param) -> TensorType:
    assert isinstance(param.of, TensorType), param.of
    return param.of


def _dims(type: TensorType) -> tuple[Dim, ...]:
    return tuple(axis for axis in type.shape if isinstance(axis, Dim))


def _name_of(axis: Dim) -> str | None:
    names = axis.names()
    name = next(iter(names)) if len(names) == 1 else None
    return name if name is not None and axis == Dim.of(name) else None


def place_of(span: Span) -> str:
    """Where it stands, for messages: `file:line:column`."""
    position = span.source.position(span.start)
    return f"{span.source.name}:{position.line}:{position.column}"


# ---------------------------------------------------------------- what sizes must satisfy


@dataclass(frozen=True, slots=True)
class Demand:
    """A relation that sizes must satisfy for a function to run; `dim` is what it is about.

    `access`: a runtime index into an axis, which must not be empty. Else: a dimension, which must
    not be negative.
    """

    goal: Relation
    dim: Dim
    access: bool
    span: Span | None


@lru_cache(maxsize=2048)
def demands(function: Function) -> tuple[Demand, ...]:
    """What must hold of the function's sizes, through its calls, in its names, each once."""
    found: dict[tuple[Relation, bool], Demand] = {}

    def add(demand: Demand) -> None:
        known = demand.goal.left.constant is not None and demand.goal.right.constant is not None
        if known and demand.goal.holds({}):
            return
        found.setdefault((demand.goal, demand.access), demand)

    def inside(body: Function) -> None:
        for node in nodes_of(body):
            for dim in _dims_of(node):
                if not natural(dim):
                    add(Demand(Relation(">=", dim, Dim.of(0)), dim, False, node.span))
            if isinstance(node, Gather):
                for extent in _clamped(node):
                    add(Demand(Relation(">", extent, Dim.of(0)), extent, True, node.span))
            if isinstance(node, Call):
                bound = dict(zip(node.function.dims, node.dims, strict=True))
                for demand in demands(node.function):
                    goal, dim = demand.goal.substitute(bound), demand.dim.substitute(bound)
                    add(Demand(goal, dim, demand.access, demand.span))
                continue
            for inner in functions_of(node):
                inside(inner)

    for param in function.params:
        for dim in _dims_of(param):
            if not natural(dim):
                add(Demand(Relation(">=", dim, Dim.of(0)), dim, False, param.span))
    inside(function)
    return tuple(found.values())


def _dims_of(node: Node) -> tuple[Dim, ...]:
    match node.type:
        case TensorType():
            return _dims(node.type)
        case ResultsType() | ArrayType():
            return ()


def _clamped(node: Gather) -> list[Dim]:
    """The axes that an unproved index reads."""
    extents = shape_of(node.x)
    return [
        extent
        for extent, index, proved in zip(extents, node.indices, node.proved, strict=True)
        if index is not None and not proved
    ]


def natural(dim: Dim) -> bool:
    """Whether the form alone shows that the dimension is not negative."""
    return all(
        coefficient >= 0 and all(map(_natural_atom, product)) for product, coefficient in dim.terms
    )


def _natural_atom(atom: Atom) -> bool:
    if atom.op == "max":
        return any(map(natural, atom.args))
    return atom.op == "name" or all(map(natural, atom.args))


# ---------------------------------------------------------------- structure


def flat_inputs(
    function: Function, inputs: Sequence[object] | Mapping[str, object], name: str
) -> list[object]:
    """One value for each value param of the entry, from one for each declared parameter.

    Inputs are in order, or by name. A tuple is given as a tuple, a struct as a mapping of its
    fields or as the record that `structured` makes of one. Raises PlanError for anything else.
    """
    takes = function.takes or tuple((p.name, _tensor(p)) for p in function.values)
    if isinstance(inputs, Mapping):
        inputs = _by_name(name, "input", [n for n, _ in takes], inputs)
    if len(inputs) != len(takes):
        named = ", ".join(f"{n}: {type}" for n, type in takes)
        expected = f"{_count(len(takes), 'input')} ({named})" if named else "no inputs"
        raise PlanError(f"{name} takes {expected}, not {len(inputs)}")
    leaves: list[object] = []
    for (param, type), value in zip(takes, inputs, strict=True):
        _spread(f"{name}: {param}", type, value, leaves)
    return leaves


def in_order(
    function: Function, inputs: Sequence[object], named: Mapping[str, object], entry: str
) -> Sequence[object] | Mapping[str, object]:
    """Inputs of which some are in order and some by name, as `flat_inputs` takes them."""
    if not named:
        return inputs
    params = [name for name, _ in function.takes]
    if len(inputs) > len(params):
        return inputs  # which says how many there are
    for name in params[: len(inputs)]:
        if name in named:
            raise PlanError(f"{entry}: {name} is given twice, in order and by name")
    return {**dict(zip(params, inputs, strict=False)), **named}


def _by_name(
    where: str,
    kind: str,
    names: Sequence[str],
    given: Mapping[str, object],
    optional: Sequence[str] = (),
) -> list[object]:
    """The values in the order of the names, None for `optional` ones that are left out.

    All others are there, and nothing else.
    """
    for name in given:
        if name not in names:
            listed = ", ".join(names) or f"no {kind}s"
            hint = near(str(name), names)
            raise PlanError(f"{where} has no {kind} {name}{hint}; it takes {listed}")
    missing = [name for name in names if name not in given and name not in optional]
    if missing:
        raise PlanError(f"{where}: missing {', '.join(missing)}")
    return [given.get(name) for name in names]


def _spread(where: str, type: object, value: object, leaves: list[object]) -> None:
    match type:
        case NoneType():
            if value is not None:
                raise PlanError(f"{where} is {_kind(value)}, and was loaded as absent: pass None")
        case _ if value is None:
            raise PlanError(f"{where} is None, expected {type}: an optional is given its value")
        case TupleType(items):
            if not isinstance(value, (tuple, list)):
                raise PlanError(f"{where} is {_kind(value)}, expected {type}: pass a tuple")
            if len(value) != len(items):
                raise PlanError(f"{where} is a tuple of {len(value)}, expected {type}")
            for i, (item, part) in enumerate(zip(items, value, strict=True)):
                _spread(f"{where}[{i}]", item, part, leaves)
        case StructType(fields=fields):
            names = [name for name, _ in fields]
            if isinstance(value, Mapping):
                parts = _by_name(where, "field", names, value, _left_out(type))
            elif isinstance(value, tuple) and _is_record(value, type.name, names):
                parts = list(value)
            else:
                raise PlanError(
                    f"{where} is {_kind(value)}, expected {type}: pass a mapping of its fields "
                    f"({', '.join(names)}), or the record that an entry returned"
                )
            for (field, of), part in zip(fields, parts, strict=True):
                _spread(f"{where}.{field}", of, part, leaves)
        case _:
            leaves.append(value)


def _left_out(struct: StructType) -> tuple[str, ...]:
    """The fields that may be left out, which are None then."""
    assert isinstance(struct.decl, tree.Struct)
    return tuple(f.name.text for f in struct.decl.fields if f.default is not None)


def _is_record(value: object, struct: str, fields: Sequence[str]) -> bool:
    same = value.__class__.__name__ == struct
    return same and getattr(value, "_fields", ()) == _attributes(fields)


@lru_cache(maxsize=512)
def leaf_paths(function: Function) -> tuple[str, ...]:
    """For each value param of an entry, how it is reached from what is passed: `p.right[0]`."""
    if not function.takes:
        return tuple(p.name for p in function.values)
    return tuple(path for name, type in function.takes for path in _leaves_of(name, type))


def _leaves_of(path: str, type: object) -> list[str]:
    match type:
        case TupleType(items):
            return [p for i, item in enumerate(items) for p in _leaves_of(f"{path}[{i}]", item)]
        case StructType(fields=fields):
            return [p for name, of in fields for p in _leaves_of(f"{path}.{name}", of)]
        case NoneType():
            return []
        case _:
            return [path]


def check_numbers(where: str, value: object, dtype: DType) -> None:
    """A Python number, or lists of them, is of the dtype without rounding a float to an integer."""
    stack: list[object] = [value]
    while stack:
        x = stack.pop()
        if isinstance(x, (list, tuple)):
            stack.extend(x)
        elif not _is_of(x, dtype):
            found = "is" if x is value else "holds"
            raise PlanError(f"{where} {found} {x!r}, which is not of type {dtype}")


def _is_of(value: object, dtype: DType) -> bool:
    if dtype is BOOL or isinstance(value, bool):
        return dtype is BOOL and isinstance(value, bool)
    if dtype.is_float:
        return isinstance(value, (int, float))
    low, high = integer_range(dtype)
    return isinstance(value, int) and low <= value <= high


def _kind(value: object) -> str:
    return f"of the Python type {value.__class__.__name__}"


def structured(returns: Type | None, leaves: Sequence[object]) -> object:
    """An entry's flat results in the structure of its declared type.

    Tuples are tuples; a struct is a `record`; an absent optional is None.
    """
    rest = list(leaves)
    value = _take(returns, rest)
    assert not rest, (returns, len(leaves))
    return value


def _take(type: Type | None, leaves: list[object]) -> object:
    match type:
        case None | NoneType():
            return None
        case TupleType(items):
            return tuple(_take(item, leaves) for item in items)
        case StructType(fields=fields):
            values = [_take(of, leaves) for _, of in fields]
            names = tuple(name for name, _ in fields)
            return record(type.name, names, _left_out(type))(*values)
        case _:
            return leaves.pop(0)


def record(name: str, fields: tuple[str, ...], optional: tuple[str, ...] = ()) -> Any:
    """The Python class of a struct's values: a named tuple of its fields, in declared order.

    The `optional` ones after which no others come are None if they are not given. A field that
    Python cannot name so gets an underscore after it (`class_`), or `field` before one that it
    begins with (`field_x`).
    """
    last = len(fields)
    while last and fields[last - 1] in optional:
        last -= 1
    return _record(name, fields, len(fields) - last)


@lru_cache(maxsize=512)
def _record(name: str, fields: tuple[str, ...], nones: int) -> Any:
    attributes, defaults = _attributes(fields), (None,) * nones
    made = namedtuple(name, attributes, defaults=defaults, module="linnet")  # type: ignore[misc]
    made.__doc__ = f"A value of the struct {name}({', '.join(fields)})."
    return made


def _attributes(fields: Sequence[str]) -> tuple[str, ...]:
    out: list[str] = []
    for field in fields:
        name = f"field{field}" if field.startswith("_") else field
        while name in out or iskeyword(name) or (name != field and name in fields):
            name += "_"
        out.append(name)
    return tuple(out)
