"""Which symbols are public, and on which page of the API reference each of them stands."""

from collections.abc import Iterator
import importlib
import inspect
import pkgutil
import types
from typing import Any, NamedTuple

import creditjax


class Section(NamedTuple):
    """A module and the public symbols that are told there.

    Attributes:
      module: its dotted name.
      doc: its docstring.
      symbols: names in it, in its own order.
    """

    module: str
    doc: str
    symbols: tuple[str, ...]


class Page(NamedTuple):
    """A page of the reference: a room of the library, or one of its lone modules.

    Attributes:
      name: "creditjax.algebra".
      sections: of the room itself, then of its modules.
    """

    name: str
    sections: tuple[Section, ...]


def pages() -> list[Page]:
    """All pages, the front door first. A symbol that a package exports stands in the package's section alone."""
    told: set[int] = set()
    front = _section(creditjax, told)
    made = []
    for info in pkgutil.iter_modules(creditjax.__path__):
        if _hidden(info.name):
            continue
        room = importlib.import_module(f"creditjax.{info.name}")
        sections = [_section(module, told) for module in _modules(room)]
        sections = [section for section in sections if section.symbols]
        if sections:
            made.append(Page(room.__name__, tuple(sections)))
    return [Page("creditjax", (front,)), *made]


def undocumented(name: str, member: Any) -> Iterator[str]:
    """The symbol, and the public methods of a class, as far as nobody has written a docstring.

    NamedTuples and dataclasses make one up; that is none. A method may inherit it.
    """
    own = vars(member).get("__doc__") if inspect.isclass(member) else member.__doc__
    if not own or own.startswith(f"{getattr(member, '__name__', name)}("):
        yield name
    if inspect.isclass(member):
        for key, value in vars(member).items():
            function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            if not key.startswith("_") and inspect.isfunction(function) and not inspect.getdoc(getattr(member, key)):
                yield f"{name}.{key}"


def public(module: types.ModuleType) -> Iterator[tuple[str, Any]]:
    """Public functions and classes of a module: those of `__all__`, or what it defines."""
    exported = getattr(module, "__all__", None)
    for name in vars(module) if exported is None else exported:
        member = getattr(module, name)
        if name.startswith("_") or not (inspect.isclass(member) or inspect.isroutine(member)):
            continue
        if exported is not None or getattr(member, "__module__", None) == module.__name__:
            yield name, member


def _section(module: types.ModuleType, told: set[int]) -> Section:
    symbols = []
    for name, member in public(module):
        if id(member) not in told:
            told.add(id(member))
            symbols.append(name)
    return Section(module.__name__, inspect.getdoc(module) or "", tuple(symbols))


def _modules(room: types.ModuleType) -> Iterator[types.ModuleType]:
    """The room and everything in it, the room first, so that what it exports stands with it."""
    yield room
    for info in pkgutil.walk_packages(getattr(room, "__path__", ()), f"{room.__name__}."):
        if not any(map(_hidden, info.name.split("."))):
            yield importlib.import_module(info.name)


def _hidden(name: str) -> bool:
    return name.startswith("_")
