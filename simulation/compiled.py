"""
The kernel, compiled: every function of the kernel's modules through numba, from the same source that runs plain.

Passing the state's thirty arrays to each function costs ten times what the functions do. So the tables are laid end to
end in two flat arrays, whole numbers and floats, and each `s.table[i, j]` of the source is rewritten to the element it
is before numba sees it; the formulas of scoring go in as they are. `pack` gives numpy views of the same memory under
the same names, so everything outside reads and fills tables without knowing.

Only the entry is cached on disk (numba's own cache beside this package); its stamp covers the source of every module,
since numba by itself would not notice a change in a callee of another file.
"""

import ast
import hashlib
import importlib
import inspect
import types
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from scoring import cost, service
from scoring.model import FloatArray
from simulation import (
    blocks,
    engine,
    joint,
    layout,
    leaving,
    looks,
    network,
    pools,
    queues,
    requests,
    routing,
    runs,
    views,
)
from simulation.layout import FLOAT_TABLES, ROW_WIDTHS, State
from simulation.traffic import IntArray

FORMULAS = (service, cost)
MODULES = (blocks, queues, network, runs, requests, leaving, pools, looks, views, joint, routing, engine)
"""Modules of the kernel, lowest first; their functions have names of their own throughout."""
ENTRY = "run"
HEADER = 4
"""Numbers kept for each table at the start of Flat.i: offset, rows, strides of the first two dimensions."""


class Flat(NamedTuple):
    """All tables of a State, laid end to end."""

    i: IntArray
    f: FloatArray


def pack(state: State) -> tuple[Flat, State]:
    """Return the state's tables in two flat arrays, and a State of views of them."""
    names = State._fields
    header = HEADER * len(names)
    sizes = {True: 0, False: header}
    offsets = {}
    for name in names:
        is_float = name in FLOAT_TABLES
        offsets[name] = sizes[is_float]
        sizes[is_float] += getattr(state, name).size
    flat = Flat(np.empty(sizes[False], np.int64), np.empty(sizes[True], np.float64))
    views = {}
    for at, name in enumerate(names):
        table = getattr(state, name)
        offset = offsets[name]
        memory = flat.f if name in FLOAT_TABLES else flat.i
        view = memory[offset : offset + table.size].reshape(table.shape)
        view[...] = table
        views[name] = view
        strides = [int(np.prod(table.shape[axis + 1 :])) for axis in range(table.ndim - 1)] + [1, 1]
        flat.i[HEADER * at : HEADER * (at + 1)] = (offset, len(table), strides[0], strides[1])
    return flat, State(**views)


class _Flatten(ast.NodeTransformer):
    """
    Rewrite `s.table[i, j]` and `len(s.table)` of one function to elements of the flat arrays.

    What a table starts at, and the strides that depend on the fleet, are read once at the head of the function.
    """

    def __init__(self) -> None:
        self.heads: dict[str, str] = {}

    def _head(self, name: str, text: str) -> str:
        self.heads[name] = text
        return name

    def _header(self, table: str, column: int) -> str:
        at = HEADER * State._fields.index(table) + column
        return self._head(f"{table}_{column}_", f"i_[{at}]")

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        name = _table_of(node.value)
        if name is None:
            return self.generic_visit(node)
        indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        widths = ROW_WIDTHS[name]
        if len(indices) != len(widths) + 1:
            raise SyntaxError(f"line {node.lineno}: s.{name} takes {len(widths) + 1} indices")
        parts = [self._header(name, 0)]
        constant = 0
        for axis, index in enumerate(indices):
            width = "1"
            if axis < len(widths):
                width = str(eval(widths[axis], vars(layout))) if widths[axis] else self._header(name, 2 + axis)  # noqa: S307 # our own table of widths.
            column = getattr(layout, index.id, None) if isinstance(index, ast.Name) else None
            if isinstance(column, int) and width.isdigit():
                constant += column * int(width)
                continue
            text = f"({ast.unparse(self.visit(index))})"
            parts.append(text if width == "1" else f"{text} * {width}")
        if constant:
            parts.append(str(constant))
        memory = "f_" if name in FLOAT_TABLES else "i_"
        self._head(memory, f"s.{memory[0]}")
        self._head("i_", "s.i")
        flat = ast.parse(f"{memory}[{' + '.join(parts)}]", mode="eval").body
        assert isinstance(flat, ast.Subscript)
        flat.ctx = node.ctx
        return flat

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Name) and node.func.id == "len":
            name = _table_of(node.args[0])
            if name is not None:
                self._head("i_", "s.i")
                return ast.Name(self._header(name, 1), ast.Load())
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.heads = {}
        node.returns = None
        for argument in node.args.args:
            argument.annotation = None
        self.generic_visit(node)
        order = sorted(self.heads, key=lambda name: name not in ("i_", "f_"))
        node.body[:0] = [ast.parse(f"{name} = {self.heads[name]}").body[0] for name in order]
        return node


def _table_of(node: ast.AST) -> str | None:
    is_table = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "s"
    return node.attr if is_table and isinstance(node, ast.Attribute) else None


def source_stamp() -> str:
    """Return a digest of the sources that the compiled kernel is made of."""
    digest = hashlib.sha256()
    for module in (*FORMULAS, layout, *MODULES):
        digest.update(inspect.getsource(module).encode())
    with open(__file__, "rb") as source:  # noqa: PTH123 # this module's own text, as inspect reads the others'.
        digest.update(source.read())
    return digest.hexdigest()


class _Scalar(ast.NodeTransformer):
    """Rewrite `np.where(c, a, b)` of a formula to `a if c else b`: numba gives an array for it even of scalars."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        for argument in node.args.args:
            argument.annotation = None
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if ast.unparse(node.func) == "np.where":
            condition, then, otherwise = node.args
            return ast.IfExp(condition, then, otherwise)
        return node


def _rewritten(module: types.ModuleType, rule: ast.NodeTransformer, space: dict[str, Any]) -> dict[str, Any]:
    """Return the module's functions, rewritten and bound to `space`."""
    tree = ast.parse(inspect.getsource(module))
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    tree = ast.fix_missing_locations(rule.visit(tree))
    made: dict[str, Any] = {}
    exec(compile(tree, str(module.__file__), "exec"), space, made)  # noqa: S102 # our own source, read above.
    return made


def _numba() -> Any:
    """Import numba when it is needed: half a second that the plain kernel does not spend. Untyped on purpose."""
    return importlib.import_module("numba")


def _sources() -> tuple[dict[str, Any], dict[str, types.FunctionType], dict[str, tuple[str, ...]]]:
    """Return the namespace, and its functions and signatures, rewritten and not yet compiled."""
    space: dict[str, Any] = {"__name__": __name__}
    functions: dict[str, types.FunctionType] = {}
    signatures: dict[str, tuple[str, ...]] = {}
    for module in (*FORMULAS, layout, *MODULES):
        space.update({k: v for k, v in vars(module).items() if not k.startswith("__")})
    for module in FORMULAS + MODULES:
        made = _rewritten(module, _Scalar() if module in FORMULAS else _Flatten(), space)
        twice = sorted(made.keys() & functions.keys())
        if twice:
            raise RuntimeError(f"kernel functions need names of their own; {module.__name__} repeats {twice}")
        functions.update(made)
        for name in made:
            if module in FORMULAS:
                continue
            annotations = inspect.get_annotations(getattr(module, name))
            signatures[name] = tuple(kind.__name__ for word, kind in annotations.items() if word != "return")
    return space, functions, signatures


@cache
def _loaded() -> Any:
    """Return the entry as the cache on disk has it, or None."""
    numba = _numba()
    space, functions, _ = _sources()
    for name, function in functions.items():
        space[name] = numba.njit(error_model="numpy")(function)
    entry = _cached_entry(functions[ENTRY])
    if entry is None or entry._cache.load_overload((_flat_type(), numba.float64), entry.targetctx) is None:
        return None
    return entry


def _flat_type() -> Any:
    return _numba().typeof(Flat(np.zeros(1, np.int64), np.zeros(1, np.float64)))


@cache
def _compiled() -> Any:
    """
    Compile the kernel, callees first, one signature each, and keep it on disk.

    The signatures are the annotations; left to itself numba would compile a function again for every mix of
    literals and widths it is called with.
    """
    numba = _numba()
    space, functions, signatures = _sources()

    flat = _flat_type()
    words = {"State": flat, "int": numba.int64, "float": numba.float64}
    order: list[str] = []

    def visit(name: str) -> None:
        if name not in order:
            for callee in functions[name].__code__.co_names:
                if callee in functions and callee != name:
                    visit(callee)
            order.append(name)

    visit(ENTRY)
    for name in order:
        # Nobody calls inner functions from Python: without the wrappers they compile faster.
        options = {} if name == ENTRY else {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
        space[name] = numba.njit(error_model="numpy", **options)(functions[name])
    entry = _cached_entry(functions[ENTRY])
    if entry is not None:
        space[ENTRY] = entry
    vectorize = numba.config.LOOP_VECTORIZE, numba.config.SLP_VECTORIZE
    # Event code has no loops worth vectorizing; looking for them takes a fifth of the time.
    numba.config.LOOP_VECTORIZE = numba.config.SLP_VECTORIZE = 0
    try:
        for name in order[:-1]:
            if name in signatures:
                space[name].compile(tuple(words[word] for word in signatures[name]))
                space[name].disable_compile()
        space[ENTRY].compile((flat, numba.float64))
    finally:
        numba.config.LOOP_VECTORIZE, numba.config.SLP_VECTORIZE = vectorize
    return space[ENTRY]


def _cached_entry(function: types.FunctionType) -> Any:
    """Return the entry with its cache on disk, or None where numba finds no place for it or has changed inside."""
    numba = _numba()

    try:
        dispatcher = numba.njit(cache=True, error_model="numpy")(function)
    except RuntimeError:  # numba: no writable place for the cache.
        return None
    index: Any = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    if not hasattr(index, "_source_stamp"):
        return None
    index._source_stamp = source_stamp()
    return dispatcher


def is_ready() -> bool:
    """Say whether the compiled kernel can be had at once: compiled in this process, or on disk."""
    return _compiled.cache_info().currsize > 0 or _loaded() is not None


def compiled_run() -> Callable[[Flat, float], int]:
    """Return `engine.run`, compiled, over the flat form; in a fresh checkout this compiles for half a minute."""
    run: Callable[[Flat, float], int] = (_loaded() if is_ready() else None) or _compiled()
    return run
