"""Docstrings as Markdown: roles become links, tables and literal blocks of reStructuredText their like."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, GriffeLoader, Module, Object

__all__ = ["Docstrings"]

_ROLE = re.compile(r":(?:class|func|meth|mod|attr|data|exc):`~?([\w.]+)`")
_DOCTEST = re.compile(r"(?:^>>> .*\n?(?:^(?!>>>|\s*$).+\n?)*)+", re.MULTILINE)
_RULE = re.compile(r"^ *=+(?: +=+)+ *$")
_MODULES = ("bounds", "fit", "methods", "metrics", "plot", "study")


class Docstrings(Extension):
    """Rewrite every docstring of the package once it is loaded."""

    def on_package(self, *, pkg: Module, loader: GriffeLoader, **_: Any) -> None:  # noqa: ARG002
        """Rewrite, with links to the names that the reference has."""
        self._public = _public_names(pkg)
        self._rewrite(pkg)

    def _rewrite(self, obj: Object) -> None:
        if obj.docstring is not None:
            text = _ROLE.sub(lambda found: self._link(found[1], obj), obj.docstring.value)
            obj.docstring.value = _doctests_fenced(_tables_converted(_literal_marked(text)), obj)
        for member in obj.members.values():
            if not member.is_alias:
                self._rewrite(member)

    def _link(self, name: str, obj: Object) -> str:
        """Link a name that the reference has; leave any other as code."""
        parts = name.removeprefix("vhat.").split(".")
        for most in (2, 1):
            home, rest = ".".join(parts[:most]), parts[most:]
            if home in self._public and not (rest and home in _MODULES):
                return f"[`{name}`][{'.'.join([self._public[home], *rest])}]"
        return self._member(name, obj) or f"`{name}`"

    def _member(self, name: str, obj: Object) -> str | None:
        """Link a method of the class that the docstring belongs to."""
        owner = obj if obj.is_class else obj.parent
        if owner is None or name not in owner.members or owner.name not in self._public:
            return None
        return f"[`{name}`][{self._public[owner.name]}.{name}]"


def _public_names(pkg: Module) -> dict[str, str]:
    """Where the reference has each name: ``FittedModel``, ``fit.Minimum`` and ``Minimum`` alike."""
    names = {module: f"vhat.{module}" for module in _MODULES}
    for module in _MODULES:
        for name in pkg[module].exports or ():
            names[f"{module}.{name}"] = f"vhat.{module}.{name}"
            names.setdefault(str(name), f"vhat.{module}.{name}")
    names |= {str(name): f"vhat.{name}" for name in pkg.exports or ()}
    return names


def _literal_marked(text: str) -> str:
    """Drop the double colons before literal blocks, which are indented in Markdown too."""
    return re.sub(r"(?m)^(.*\S)::$", r"\1:", re.sub(r"(?m)^ *::\n", "", text))


def _doctests_fenced(text: str, obj: Object) -> str:
    """Fence the doctests of modules; those of an ``Examples:`` section are fenced already."""
    return _DOCTEST.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", text) if obj.is_module else text


def _tables_converted(text: str) -> str:
    lines, made = text.split("\n"), []
    while lines:
        line = lines.pop(0)
        if not _RULE.match(line):
            made.append(line)
            continue
        starts = [found.start() for found in re.finditer("=+", line)]
        head: list[list[str]] = [[]]
        while not _RULE.match(lines[0]):
            head.append(_cells(lines.pop(0), starts))
        lines.pop(0)
        rows: list[list[str]] = []
        while not _RULE.match(lines[0]):
            cells = _cells(lines.pop(0), starts)
            if cells[0] or not rows:
                rows.append(cells)
            else:
                rows[-1] = [f"{a} {b}".strip() for a, b in zip(rows[-1], cells, strict=True)]
        lines.pop(0)
        made += [_row(head[-1]), _row(["---"] * len(starts)), *map(_row, rows)]
    return "\n".join(made)


def _cells(line: str, starts: list[int]) -> list[str]:
    ends = [*starts[1:], max(len(line), starts[-1])]
    return [line[start:end].strip() for start, end in zip(starts, ends, strict=True)]


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
