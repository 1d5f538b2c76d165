"""Generated source in regions: runs of statements without a loop, each a function of its own.

What `torch.compile` is given must not contain the loop over the layers, else it would compile each
of them. So loops stay Python, and what stands between and inside them becomes functions, which are
compiled one by one: the body of a loop over 30 layers is one function that is called 30 times.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Functions = Mapping[str, ast.FunctionDef]

# Fewer operations than these cost less than to check whether a compiled region may be used.
_WORK = 4


@dataclass(frozen=True, slots=True)
class Regions:
    """The source split up: its text, the functions that are regions, and those without a loop."""

    text: str
    names: tuple[str, ...]
    whole: frozenset[str]


def split(source: str) -> Regions:
    """The same functions, in which runs of statements outside of loops are calls of regions.

    A function without a loop, and that calls none with one, stays whole: it is part of its caller's
    region, or, where the runtime calls it, one by itself.
    """
    tree = ast.parse(source)
    functions = functions_of(tree)
    kept = {name for name, function in functions.items() if function.decorator_list}
    looping = reaching(functions, _has_control)
    taken = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} | set(functions)
    names: list[str] = []
    body: list[ast.stmt] = []
    for item in tree.body:
        if isinstance(item, ast.FunctionDef) and item.name not in kept:
            item = _Indices(item).visit(item)
            if item.name in looping:
                splitter = _Splitter(item, functions, looping, kept, taken, native_names(tree))
                item.body = splitter.whole()
                body.extend(splitter.regions)
                names.extend(region.name for region in splitter.regions)
        body.append(item)
    tree.body = body
    text = ast.unparse(ast.fix_missing_locations(tree)) + "\n"
    return Regions(text, tuple(names), frozenset(set(functions) - looping - kept))


def functions_of(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    return {item.name: item for item in tree.body if isinstance(item, ast.FunctionDef)}


def reaching(functions: Functions, found: Callable[[ast.FunctionDef], bool]) -> set[str]:
    """The functions for which it holds, and those that call one of them."""
    names = {name for name, function in functions.items() if found(function)}
    for name, function in functions.items():  # callees come first
        if called(function) & names:
            names.add(name)
    return names


def called(node: ast.AST) -> set[str]:
    """The functions that the code calls by their plain names."""
    return {
        inner.func.id
        for inner in ast.walk(node)
        if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name)
    }


def native_names(tree: ast.Module) -> set[str]:
    """The modules whose functions are worth compiling, one at a time."""
    own = [n for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == "linnet.torch"]
    return {"F", *(alias.name for node in own for alias in node.names)}


def is_work(nodes: Sequence[ast.AST], leaves: set[str], native: set[str]) -> bool:
    """Whether the code computes something: calls one of these functions, or enough of PyTorch."""
    operations = 0
    for node in nodes:
        if called(node) & leaves:
            return True
        for inner in ast.walk(node):
            match inner:
                case ast.Attribute(value=ast.Name(id=base)) if base in native:
                    return True
                case ast.BinOp() | ast.Call() | ast.Compare():
                    operations += 1
                case _:
                    pass
    return operations >= _WORK


def _has_control(function: ast.FunctionDef) -> bool:
    return any(isinstance(node, (ast.For, ast.While, ast.If)) for node in ast.walk(function))


class _Splitter:
    """The regions of one function with loops."""

    def __init__(
        self,
        function: ast.FunctionDef,
        functions: Functions,
        looping: set[str],
        kept: set[str],
        taken: set[str],
        native: set[str],
    ) -> None:
        self.function = function
        self.own = set(functions)
        self.leaves = set(functions) - looping - kept
        self.looping = looping
        self.kept = kept
        self.taken = taken
        self.native = native
        self.constants: list[ast.stmt] = []
        self.regions: list[ast.FunctionDef] = []
        self.lists = {
            target.id
            for node in ast.walk(function)
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.List)
            for target in node.targets
            if isinstance(target, ast.Name)
        }

    def whole(self) -> list[ast.stmt]:
        """The function's statements, with calls of its regions."""
        self.function.body = self._flat(self.function.body)
        arguments = self.function.args
        self.local = {a.arg for a in (*arguments.args, *arguments.kwonlyargs)}
        self.local |= {name for item in self.constants for name in _stored(item)}
        self.local |= set(_stored(self.function))
        docs = self.function.body[:1] if ast.get_docstring(self.function) is not None else []
        rest = self._block(self.function.body[len(docs) :])
        return [*docs, *self.constants, *rest]

    # ------------------------------------------------ one call to a statement

    def _flat(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        """The statements, with calls that are no part of a region in statements of their own."""
        out: list[ast.stmt] = []
        for statement in statements:
            if isinstance(statement, (ast.For, ast.While, ast.If)):
                statement.body = self._flat(statement.body)
                statement.orelse = self._flat(statement.orelse)
            else:
                out += self._constants_of(statement)
                out += self._inner_calls_of(statement)
            out.append(statement)
        return out

    def _constants_of(self, statement: ast.stmt) -> list[ast.stmt]:
        """What is computed once stays outside: a region would compute it in each call."""
        out: list[ast.stmt] = []
        for call in [node for node in ast.walk(statement) if isinstance(node, ast.Call)]:
            if isinstance(call.func, ast.Name) and call.func.id in self.kept:
                if isinstance(statement, ast.Assign) and statement.value is call:
                    continue
                name = self._fresh(call.func.id)
                taken = _assign(name, _copied(call))
                (out if call.args else self.constants).append(taken)
                _become(statement, call, name)
        return out

    def _inner_calls_of(self, statement: ast.stmt) -> list[ast.stmt]:
        """The call of a function with a loop inside an expression comes first, if that is the same.

        It is where every other call of a function takes its result, and so comes later anyway.
        """
        calls = [
            node
            for node in ast.walk(statement)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in self.own
        ]
        inner = [c for c in calls if isinstance(c.func, ast.Name) and c.func.id in self.looping]
        if len(inner) != 1 or getattr(statement, "value", None) is inner[0]:
            return []
        around = [c for c in calls if any(node is inner[0] for node in ast.walk(c))]
        if len(around) != len(calls):
            return []
        name = self._fresh("result")
        first = _assign(name, _copied(inner[0]))
        _become(statement, inner[0], name)
        return [first]

    # ------------------------------------------------ runs

    def _block(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        """The statements, of which each run that can be one is a call of a region."""
        out: list[ast.stmt] = []
        run: list[ast.stmt] = []
        for statement in statements:
            if self._joins(statement):
                run.append(statement)
                continue
            out += self._region(run)
            run = []
            if isinstance(statement, (ast.For, ast.While, ast.If)):
                statement.body = self._block(statement.body)
                statement.orelse = self._block(statement.orelse)
            out.append(statement)
        return out + self._region(run)

    def _joins(self, statement: ast.stmt) -> bool:
        if not isinstance(statement, (ast.Assign, ast.Expr, ast.Return)):
            return False
        if any(isinstance(node, ast.Starred) for node in ast.walk(statement)):
            return False
        # A list has another length in each turn, for which there would be another compilation.
        return not called(statement) & (self.looping | self.kept) and not any(
            isinstance(node, ast.Name) and node.id in self.lists for node in ast.walk(statement)
        )

    def _region(self, run: list[ast.stmt]) -> list[ast.stmt]:
        if not is_work(run, self.leaves, self.native):
            return run
        inside = {id(node) for statement in run for node in ast.walk(statement)}
        later = {
            node.id
            for node in ast.walk(self.function)
            if isinstance(node, ast.Name)
            and isinstance(node.ctx, ast.Load)
            and id(node) not in inside
        }
        inputs: list[str] = []
        stored: list[str] = []
        for statement in run:
            for node in ast.walk(statement):
                if isinstance(node, ast.Name) and node.id in self.local - {*stored, *inputs}:
                    if isinstance(node.ctx, ast.Load):
                        inputs.append(node.id)
            stored += [name for name in _stored(statement) if name not in stored]
        outputs = [name for name in stored if name in later]
        name = self._fresh(f"{self.function.name}_part_{len(self.regions) + 1}", "")
        arguments: list[ast.expr] = [ast.Name(given, ast.Load()) for given in inputs]
        call = ast.Call(func=ast.Name(name, ast.Load()), args=arguments, keywords=[])
        if isinstance(run[-1], ast.Return):
            self.regions.append(_function(name, inputs, run))
            return [ast.Return(call)]
        if not outputs:
            self.regions.append(_function(name, inputs, run))
            return [ast.Expr(call)]
        result = ast.Return(_tuple(outputs, ast.Load()))
        self.regions.append(_function(name, inputs, [*run, result]))
        return [ast.Assign([_tuple(outputs, ast.Store())], call)]

    def _fresh(self, wish: str, end: str = "_1") -> str:
        name, number = f"{wish}{end}", 1
        while name in self.taken:
            number += 1
            name = f"{wish}_{number}"
        self.taken.add(name)
        return name


class _Indices(ast.NodeTransformer):
    """`x[:, S - 1]` as `x[:, :].select(1, S - 1)`: PyTorch compiles the first for each S anew."""

    def __init__(self, function: ast.FunctionDef) -> None:
        self.sizes = {a.arg for a in function.args.kwonlyargs}
        for node in ast.walk(function):
            match node:
                case ast.Assign([ast.Tuple(targets)], ast.Attribute(attr="shape")):
                    self.sizes |= {t.id for t in targets if isinstance(t, ast.Name)}
                case ast.Assign(
                    [ast.Name(id=name)], ast.Subscript(value=ast.Attribute(attr="shape"))
                ):
                    self.sizes.add(name)
                case ast.For(target=ast.Name(id=name), iter=ast.Call(func=ast.Name(id="range"))):
                    self.sizes.add(name)
                case _:
                    pass

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.ctx, ast.Load):
            return node
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if len(parts) == 1 and not isinstance(node.value, (ast.Name, ast.Call)):
            return node  # a shape, or an array of blocks
        chosen = [i for i, part in enumerate(parts) if self._is_size(part)]
        others = [part for i, part in enumerate(parts) if i not in chosen]
        if not chosen or not all(isinstance(p, ast.Slice) or _is_number(p) for p in others):
            return node
        everything: list[ast.expr] = [
            ast.Slice() if i in chosen else part for i, part in enumerate(parts)
        ]
        node.slice = ast.Tuple(everything, ast.Load())
        out: ast.expr = node
        for taken, i in enumerate(chosen):
            axis = i - taken - sum(_is_number(p) for p in parts[:i])
            select = ast.Attribute(out, "select", ast.Load())
            out = ast.Call(func=select, args=[ast.Constant(axis), parts[i]], keywords=[])
        return out

    def _is_size(self, part: ast.expr) -> bool:
        """Whether the index is an integer that sizes alone decide."""
        names = [node for node in ast.walk(part) if isinstance(node, ast.Name)]
        return bool(names) and all(
            (isinstance(node, ast.Name) and node.id in self.sizes)
            or isinstance(node, (ast.BinOp, ast.Constant, ast.operator, ast.expr_context))
            for node in ast.walk(part)
        )


def _is_number(part: ast.expr) -> bool:
    return isinstance(part, ast.Constant) and type(part.value) is int


def _stored(node: ast.AST) -> list[str]:
    return [
        inner.id
        for inner in ast.walk(node)
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)
    ]


def _copied(call: ast.Call) -> ast.Call:
    return ast.Call(func=call.func, args=call.args, keywords=call.keywords)


def _become(statement: ast.stmt, call: ast.Call, name: str) -> None:
    """The call in the statement is the variable instead."""
    for node in ast.walk(statement):
        for field, value in ast.iter_fields(node):
            if value is call:
                setattr(node, field, ast.Name(name, ast.Load()))
            elif isinstance(value, list):
                value[:] = [ast.Name(name, ast.Load()) if v is call else v for v in value]


def _assign(name: str, value: ast.expr) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], value)


def _tuple(names: Sequence[str], context: ast.expr_context) -> ast.expr:
    values: list[ast.expr] = [ast.Name(name, context) for name in names]
    return values[0] if len(values) == 1 else ast.Tuple(values, context)


def _function(name: str, inputs: Sequence[str], body: list[ast.stmt]) -> ast.FunctionDef:
    arguments = ast.arguments(
        posonlyargs=[],
        args=[ast.arg(arg=given) for given in inputs],
        kwonlyargs=[],
        kw_defaults=[],
        defaults=[],
    )
    made = ast.FunctionDef(name=name, args=arguments, body=body, decorator_list=[], returns=None)
    if "type_params" in ast.FunctionDef._fields:  # from Python 3.12 on
        setattr(made, "type_params", [])  # noqa: B010
    return made


__all__ = ["Regions", "called", "functions_of", "is_work", "native_names", "reaching", "split"]
