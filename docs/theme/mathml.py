"""Formulas as MathML, made when the site is built: no script, no font, nothing to fetch when a page is read."""

from __future__ import annotations

import html
import re

from latex2mathml.converter import convert

__all__ = ["with_formulas"]

_FORMULA = re.compile(r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<tex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL)
_TAG = re.compile(r"\\tag\{(.*?)\}")
_LETTER = re.compile(r'<mi mathvariant="(?P<face>double-struck|script)">(?P<letter>[A-Z])</mi>')
_NAME = re.compile(r'(<mi>(?:ln|sup|max|min)</mi>)(?!<mo stretchy="false">&#x00028;|</)')
"""An operator's name, which keeps its distance from what it is applied to unless that is in brackets."""
_PRIME = re.compile(r"<msup>((?:(?!</?msup>).)*)<mi>&#x02032;</mi></msup>")
_LOW_PRIME = re.compile(r"<msubsup>((?:(?!</?msubsup>).)*)<mi>&#x02032;</mi></msubsup>")
"""A prime is a small raised mark already: as an exponent it would be a speck."""
_FACES = {
    "double-struck": {"E": "𝔼", "P": "ℙ", "R": "ℝ"},
    "script": {"A": "𝒜", "I": "ℐ"},
}
"""Browsers know no mathvariant but ``normal``: the letters have characters of their own."""


def with_formulas(page: str) -> str:
    """Replace what arithmatex has marked, inline and on lines of its own, by MathML."""
    return _FORMULA.sub(_typeset, page)


def _typeset(found: re.Match[str]) -> str:
    display = found["tag"] == "div"
    tex = _TAG.sub(r"\\qquad\\text{(\1)}", html.unescape(found["tex"]).strip())
    made = _LETTER.sub(_own_letter, convert(tex, display="block" if display else "inline"))
    made = made.replace('width="negativethinmathspace"', 'width="-0.167em"')
    made = made.replace("<mi>&#x02AAF;</mi>", "<mo>&#x02AAF;</mo>")
    made = _PRIME.sub(r'\1<mo lspace="0" rspace="0">&#x02032;</mo>', made)
    made = _LOW_PRIME.sub(r'<msub>\1</msub><mo lspace="0" rspace="0">&#x02032;</mo>', made)
    made = made.replace("<mo>&#x022C6;</mo>", "<mo>&#x02217;</mo>")
    made = _NAME.sub(r'\1<mspace width="0.167em"/>', made)
    return f'<div class="formula">{made}</div>' if display else made


def _own_letter(found: re.Match[str]) -> str:
    return f'<mi mathvariant="normal">{_FACES[found["face"]][found["letter"]]}</mi>'
