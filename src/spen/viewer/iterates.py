"""The iterates y_0 … y_T as HTML, with a slider that shows one of them at a time.

Elements of iterate t have the attribute `data-t="t"`, those of several iterates list them ("3 4 5"). `data-at` of the
container is the iterate that is shown; style sheets do the selection, so moving the slider makes no request.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

SMALL = (340, 220)
"""Of charts, three in a row."""

_SHOW = "const f=this.closest('.iterates');clearInterval(f.timer);f.dataset.at=this.value"
_PLAY = (
    "const f=this.closest('.iterates'),r=f.querySelector('input');clearInterval(f.timer);"
    "const go=t=>{r.value=t;f.dataset.at=t;if(t>=+r.max)clearInterval(f.timer)};"
    "go(0);f.timer=setInterval(()=>go(+r.value+1),+f.dataset.pace)"
)


def with_slider(parts: Sequence[str], last: int) -> str:
    """The parts one below the other, under a slider from 0 to `last` that starts at `last`.

    Without iterations (`last` = 0) there is no slider.
    """
    rules = "".join(f'.iterates[data-at="{t}"] [data-t~="{t}"]{{display:revert}}' for t in range(last + 1))
    slider = ""
    if last:
        labels = "".join(f'<b data-t="{t}">iteration {t} of {last}</b>' for t in range(last + 1))
        slider = (
            f'<div class="scrub"><button type="button" onclick="{_PLAY}" aria-label="play from the start">▶</button>'
            f'<input type="range" min="0" max="{last}" step="1" value="{last}" aria-label="iteration" '
            f'oninput="{_SHOW}"><output>{labels}</output></div>'
        )
    # Milliseconds per iterate: a descent plays for at most a few seconds.
    pace = max(150, min(900, 6000 // (last + 1)))
    style = f"<style>.iterates [data-t]{{display:none}}{rules}</style>"
    return f'<div class="iterates" data-at="{last}" data-pace="{pace}">{style}{slider}{"".join(parts)}</div>'


def data_t(t: int, last: int, *, ended: int) -> str:
    """The `data-t` of iterate t; the last iterate of a descent that ended early is shown for all that follow."""
    return " ".join(map(str, range(t, last + 1))) if t == ended else str(t)


def mistake(sentence: str) -> str:
    """An error message of one sentence, in the place of the answer."""
    return f'<div class="mistake" role="alert">{escape(" ".join(sentence.split()))}</div>'


def note(sentence: str) -> str:
    """A remark below a picture."""
    return f'<p class="note">{escape(sentence)}</p>'
