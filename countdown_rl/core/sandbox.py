"""Limits on time and memory of Jinja templates, which are other people's programs.

An environment with :class:`Limits` counts loops, calls, filters and operators as steps, and the characters they handle,
and estimates the size of a result before a short template computes a long one.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from types import GeneratorType
from typing import Any

from jinja2 import nodes
from jinja2.sandbox import SecurityError
from jinja2.utils import Namespace

#: Steps and characters of one rendering, and characters of one value and of a template.
STEPS, CHARACTERS, LONGEST, TEMPLATE = 500_000, 1 << 26, 1 << 20, 1 << 18
#: Largest whole number as an argument, such as a width, and bits of a result of arithmetic.
WIDEST, BITS = 100_000, 20_000
_SHORT = (bool, float, int, type(None))

_left: ContextVar[list[int]] = ContextVar("steps and characters left")


@contextmanager
def limits() -> Iterator[None]:
    """Limit what is compiled and rendered in this context."""
    token = _left.set([STEPS, CHARACTERS])
    try:
        yield
    finally:
        _left.reset(token)


def charge(steps: int, characters: int = 0) -> None:
    """Take *steps* and *characters* off what is left. Raises SecurityError if that is too little."""
    left = _left.get()
    left[0] -= steps
    left[1] -= characters
    if min(left) < 0 or characters > CHARACTERS:
        raise SecurityError(
            "it takes too long or writes too much; use a template with fewer loops and shorter texts"
        )


def check(size: int) -> None:
    """Raise SecurityError for a value of *size* characters that is too long."""
    if size > LONGEST:
        raise SecurityError(
            f"it makes a text of more than {LONGEST:,} characters; use a shorter one"
        )


def written(value: Any) -> int:
    """Return about how many characters *value* has as text, with all it holds, and charge for counting them."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, _SHORT):
        return 32 + (value.bit_length() // 3 if isinstance(value, int) else 0)
    size, items, stack = 0, 0, [value]
    while stack:
        item = stack.pop()
        items += 1
        if isinstance(item, Namespace):
            item = vars(item)
        if isinstance(item, str | bytes):
            size += len(item)
        elif isinstance(item, dict):
            stack += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple | set | frozenset | range):
            stack += item
        check(size + items + len(stack))
    charge(items)
    return size + 4 * items


def sized(value: Any) -> Any:
    """Return *value*, which is written or compared, and charge for it."""
    if not isinstance(value, dict):
        charge(1, written(value))
    return value


def sliced(value: Any) -> Any:
    """Return *value*, the result of a filter, a call or a slice, and charge for it; a generator, as it goes on."""
    if isinstance(value, str | bytes):
        check(len(value))
        charge(1, len(value))
    elif isinstance(value, list | tuple | dict | set):
        charge(1 + len(value))
    elif isinstance(value, GeneratorType):
        return counted(value)
    return value


def counted(values: Iterable[Any], data: int = 0) -> Iterator[Any]:
    """Yield *values*, which a loop goes through, and charge for each and the *data* characters written for it."""
    for value in values:
        charge(1, data)
        yield value


def _check_format(text: str, sign: str, values: Any) -> None:
    """Check the length of *text* with *values* in place of its fields, which begin with *sign*."""
    widths = [int(digits) if len(digits) < 8 else LONGEST for digits in re.findall(r"\d+", text)]
    numbers = list(values.values()) if isinstance(values, dict) else list(values)
    if re.search(r"\*" if sign == "%" else r"{[^{}]*{", text):  # widths may be values
        widths += [abs(number) for number in numbers if isinstance(number, int)]
    check(len(text) + text.count(sign) * (written(values) + max(widths, default=0)))


def _check_arguments(name: str, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Check what the filter or method *name* of *value* may make with its arguments."""
    given = [*args, *kwargs.values()]
    numbers = [abs(number) for number in given if isinstance(number, int)]
    if max(numbers, default=0) > WIDEST:
        raise SecurityError(f"it gives {name} a number above {WIDEST:,}; use a smaller one")
    texts = [part for part in given if isinstance(part, str)]
    longest = max(
        [
            1,
            *numbers,
            *map(len, texts),
            *(written(part) for part in given if isinstance(part, list | tuple)),
        ]
    )
    if name in ("indent", "expandtabs", "wordwrap", "replace", "translate") and isinstance(
        value, str
    ):
        places = {"indent": value.count("\n") + 1, "expandtabs": value.count("\t")}.get(
            name, len(value) + 1
        )
        if name == "replace" and texts:
            places, longest = (value.count(texts[0]) if texts[0] else places), len(texts[-1])
        elif name == "translate":
            longest = written(given)
        check(len(value) + places * longest)
    elif name == "format" and isinstance(value, str):
        _check_format(value, "%", kwargs or args)
    elif name in ("tojson", "string", "pprint"):
        check(written(value) * (longest if name == "tojson" else 1))
    elif name == "join" and isinstance(value, list | tuple):
        check(written(value) + len(value) * longest)
    elif (
        name == "sum"
        and isinstance(value, list | tuple)
        and any(isinstance(part, list | tuple) for part in given)
    ):
        charge(len(value) ** 2 // 64)  # each list is copied


def _guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the filter or test *function* within the limits."""
    place = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        head, (value, *rest) = args[:place], args[place:]
        if isinstance(value, GeneratorType) and name in ("join", "sum", "string"):
            value = list(counted(value))
        size = len(value) if isinstance(value, str | list | tuple | range) else 0
        charge(
            1
            + (
                size // 16
                if isinstance(value, str) or name in ("length", "count", "first")
                else size
            ),
            size,
        )
        charge(0, sum(len(part) for part in rest if isinstance(part, str)))
        _check_arguments(name, value, tuple(rest), kwargs)
        return sliced(function(*head, value, *rest, **kwargs))

    return guarded


class Limits:
    """Mixin for a sandboxed environment of Jinja; :meth:`limit` makes an environment such a one."""

    intercepted_binops = frozenset(["+", "-", "*", "/", "//", "%", "**"])

    @classmethod
    def limit(cls, environment: Any) -> Any:
        """Return *environment* with limits for what it compiles from now on."""
        environment.__class__ = type("Limited", (cls, type(environment)), {})
        for functions in (environment.filters, environment.tests):
            for name, function in functions.items():
                functions[name] = _guarded(name, function)
        environment.filters |= {"sized": sized, "sliced": sliced, "counted": counted}
        return environment

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        if len(source) > TEMPLATE:
            raise SecurityError(f"it has more than {TEMPLATE:,} characters; use a shorter one")
        tree: nodes.Template = super()._parse(source, name, filename)  # type: ignore[misc]
        _count(tree)
        return tree

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Compute a binary operator."""
        charge(1)
        sizes = [len(side) if isinstance(side, str | list | tuple) else 0 for side in (left, right)]
        bits = [side.bit_length() if isinstance(side, int) else 0 for side in (left, right)]
        computed = 0
        if operator == "*":
            if any(sizes):
                check(
                    sizes[0] * right
                    if sizes[0] and isinstance(right, int)
                    else sizes[1] * (left if bits[0] else 1)
                )
            computed = sum(bits)
        elif operator == "**" and all(bits):
            computed = bits[0] * abs(right) if abs(right) <= BITS else abs(right)
        elif operator == "%" and isinstance(left, str):
            _check_format(left, "%", right if isinstance(right, tuple | dict) else (right,))
        elif operator == "+":
            check(sum(sizes))
        if computed > BITS:
            raise SecurityError(
                f"it computes a number of more than {BITS:,} bits; use a smaller one"
            )
        return sliced(super().call_binop(context, operator, left, right))  # type: ignore[misc]

    def wrap_str_format(self, value: Any) -> Any:
        """Return ``str.format`` and ``format_map`` within the limits, None for other values."""
        function = super().wrap_str_format(value)  # type: ignore[misc]
        if function is None:
            return None

        @wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> str:
            mapping = args[0] if value.__name__ == "format_map" else kwargs
            _check_format(value.__self__, "{", [*mapping.values(), *args])
            return str(sliced(function(*args, **kwargs)))

        return guarded

    def call(self, context: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function, a method or a macro."""
        owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
        charge(1 + sum(len(part) for part in args if isinstance(part, list | tuple | dict)))
        if isinstance(owner, str):
            charge(1, len(owner))
            if name == "join":
                args = (items := list(counted(*args)),)
                check(written(items) + len(owner) * len(items))
            else:
                _check_arguments(name, owner, args, kwargs)
        elif name in ("index", "count", "remove"):  # of a list, whose items are compared
            charge(1, written([owner, *args]))
        return sliced(super().call(context, function, *args, **kwargs))  # type: ignore[misc]


def _count(node: nodes.Node) -> None:
    """Let the loops, outputs, concatenations, comparisons and slices below *node* count what they do."""

    def by(name: str, part: Any, *args: nodes.Expr) -> nodes.Filter:
        return nodes.Filter(part, name, list(args), [], None, None, lineno=part.lineno)

    for child in list(node.iter_child_nodes()):
        _count(child)

    def bounded(part: Any) -> Any:
        is_slice = isinstance(part, nodes.Getitem) and isinstance(part.arg, nodes.Slice)
        return by("sliced", part) if is_slice else part

    for field, value in list(node.iter_fields()):
        setattr(
            node, field, list(map(bounded, value)) if isinstance(value, list) else bounded(value)
        )
    if isinstance(node, nodes.For):
        data = sum(len(text.data) for text in node.find_all(nodes.TemplateData))
        node.iter = by("counted", node.iter, nodes.Const(data))
    elif isinstance(node, nodes.Output | nodes.Concat):
        node.nodes = [
            part if isinstance(part, nodes.TemplateData) else by("sized", part)
            for part in node.nodes
        ]
    elif isinstance(node, nodes.Compare):
        node.expr = by("sized", node.expr)
        for operand in node.ops:
            operand.expr = by("sized", operand.expr)
