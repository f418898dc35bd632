"""Jinja's immutable sandbox, with all work charged to a budget (see budget.py).

Jinja limits one range() to 100,000 and nothing else. Here, everything a template can do goes
through the budget: iterations, calls, filters, operators, literals of lists and objects, slices,
and the joining of text. Some charges are filters that are inserted into the template's tree.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jinja2 import nodes, pass_context, runtime
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from .budget import ITEMS_PER_STEP, current_budget
from .sizes import FILTER_SIZES, METHOD_SIZES, OPERATOR_SIZES, size_of_format

_NOT_FOR_CHATS = ("pprint", "random", "striptags", "urlize", "wordwrap", "xmlattr")
"""Filters for web pages. The time of some grows with the square of the text's length."""


_OF_JINJA = ("_loop_vars", "_block_vars")
"""Arguments that compiled templates add to calls."""


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Compiles templates whose renderings need a `current_budget`."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self, extensions: Sequence[str | type[Extension]]) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=extensions, finalize=_output
        )
        self.filters = {
            name: _bounded_filter(name, function)
            for name, function in self.filters.items()
            if name not in _NOT_FOR_CHATS
        }
        self.filters |= {
            _JOINED: _joined,
            _KEPT: _kept,
            _COUNTED: _counted,
            _ITERATION: _iteration,
        }
        del self.globals["lipsum"]

    def add_filter(self, name: str, function: Callable[..., Any]) -> None:
        self.filters[name] = _bounded_filter(name, function)

    def call(__self, __context: runtime.Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        budget = current_budget.get()
        budget.step()
        size = METHOD_SIZES.get(getattr(__obj, "__name__", ""))
        owner = getattr(__obj, "__self__", None)
        if size is not None and isinstance(owner, str | bytes | int):
            args = tuple(map(_without_generators, args))
            given = {key: kwargs[key] for key in kwargs if key not in _OF_JINJA}
            budget.require(size(budget, owner, *args, **given))
        return budget.keep(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: runtime.Context, operator: str, left: Any, right: Any) -> Any:
        budget = current_budget.get()
        budget.step()
        size = OPERATOR_SIZES.get(operator)
        if size is not None:
            budget.require(size(budget, left, right))
        return budget.keep(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        formatted = super().wrap_str_format(value)
        if formatted is None:
            return None

        def bounded(*args: Any, **kwargs: Any) -> str:
            budget = current_budget.get()
            budget.require(size_of_format(budget, value.__self__, *args, **kwargs))
            return formatted(*args, **kwargs)

        return bounded

    def concat(self, pieces: Iterable[str]) -> str:
        """Join the output of a macro or block."""
        budget = current_budget.get()
        return "".join([budget.keep(piece) for piece in pieces])

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        return super()._generate(_Payments(self).visit(source), *args, **kwargs)


_JOINED, _KEPT, _COUNTED, _ITERATION = "joined()", "kept()", "counted()", "iteration()"
"""Filters that only compiled templates use: no template can write these names."""


class _Payments(NodeTransformer):
    """Inserts charges into the tree of a template."""

    def __init__(self, environment: BoundedEnvironment) -> None:
        self._environment = environment

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        if node.test is not None:
            node.test = self._new(nodes.And, node, self._count(node, 1), node.test)
        # Constant text between the statements of a body also takes memory.
        outputs = sum(1 for child in node.body for _ in child.find_all(nodes.Output))
        count = self._count(node, 1 + outputs)
        node.body.insert(0, self._new(nodes.ExprStmt, node, count))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return self._filter(_JOINED, self._new(nodes.List, node, node.nodes))

    def visit_List(self, node: nodes.List) -> nodes.Node:
        return self._kept_literal(node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        return self._kept_literal(node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        return self._kept_literal(node) if node.ctx == "load" else node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return self._filter(_KEPT, node) if isinstance(node.arg, nodes.Slice) else node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = self._filter(_COUNTED, node.expr)
        return node

    def visit_Test(self, node: nodes.Test) -> nodes.Node:
        self.generic_visit(node)
        if node.name not in ("defined", "undefined"):  # they test the expression, not its value
            node.node = self._filter(_COUNTED, node.node)
        return node

    def _kept_literal(self, node: nodes.Expr) -> nodes.Node:
        is_constant = all(
            isinstance(child, nodes.Const | nodes.Pair) for child in node.iter_child_nodes()
        ) and all(isinstance(pair.value, nodes.Const) for pair in node.find_all(nodes.Pair))
        self.generic_visit(node)
        return node if is_constant else self._filter(_KEPT, node)

    def _filter(self, name: str, node: nodes.Expr) -> nodes.Filter:
        filtered: nodes.Filter = self._new(nodes.Filter, node, node, name, [], [], None, None)
        return filtered

    def _count(self, near: nodes.Node, steps: int) -> nodes.Filter:
        return self._filter(_ITERATION, self._new(nodes.Const, near, steps))

    def _new(self, kind: type[nodes.Node], near: nodes.Node, *fields: Any) -> Any:
        return kind(*fields, lineno=near.lineno, environment=self._environment)


def _bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    size = FILTER_SIZES.get(name)
    first = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        budget = current_budget.get()
        budget.step(1 + _num_items(args[first : first + 1]) // ITEMS_PER_STEP)
        if size is not None:
            args = (*args[:first], _without_generators(args[first]), *args[first + 1 :])
            budget.require(size(budget, *args[first:], **kwargs))
        return budget.keep(function(*args, **kwargs))

    return bounded


def _num_items(values: tuple[Any, ...]) -> int:
    return sum(
        len(value) for value in values if hasattr(value, "__len__") and not isinstance(value, str)
    )


def _without_generators(value: Any) -> Any:
    """Return a value whose items can be measured before they are used."""
    return list(value) if hasattr(value, "__next__") else value


def _output(value: Any) -> Any:
    """Check a value that is written to the output, which `concat` charges for."""
    budget = current_budget.get()
    budget.step()
    budget.require(budget.size(value))
    return value


def _joined(parts: list[Any]) -> str:
    """Join texts, as the operator ~ does."""
    budget = current_budget.get()
    budget.step()
    budget.require(sum(map(budget.size, parts)))
    text: str = budget.keep("".join(map(str, parts)))
    return text


def _kept(value: Any) -> Any:
    return current_budget.get().keep(value)


@pass_context  # keeps Jinja from computing it once, when it compiles the template
def _iteration(context: runtime.Context, steps: int) -> bool:
    current_budget.get().step(steps)
    return True


def _counted(value: Any) -> Any:
    current_budget.get().step()
    return value
