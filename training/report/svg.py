"""Pictures of the report: inline SVG in the page's colours (light, dark, print), with alternatives.

matplotlib is imported on first use, without pyplot, so no global figure or display is touched.
Letters stay text in the SVG: the page's font applies, they can be searched, and scripts that
matplotlib's font lacks still show. Only dense scatter layers are drawn as pixels (Agg) inside the
SVG.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import NDArray

from training.formatting import count
from training.report.data import Floats

# Each colour is a CSS variable of the page; matplotlib draws with the hexadecimal value as its
# placeholder.
INK, MUTED, LINE, PAPER = "#1b2430", "#5d6977", "#dbe1e8", "#fefefe"
SIDE_COLOURS: dict[str, str] = {"train": "#2f6db3", "val": "#d98613", "test": "#12906a"}
MODEL, BASELINE, ALARM = "#3b4cc0", "#87919e", "#b3362c"
VARIABLES = {
    INK: "ink",
    MUTED: "muted",
    LINE: "line",
    PAPER: "paper",
    MODEL: "model",
    BASELINE: "baseline",
    ALARM: "bad",
    **{colour: side for side, colour in SIDE_COLOURS.items()},
}
SIDE_NAMES = {"train": "train", "val": "validation", "test": "test"}
STYLE = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "legend.loc": (
        "upper left"
    ),  # the default looks for a free place, which takes seconds in a dense figure
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "round",
}
MAX_POINTS = 4000
NARROW, TALL, WIDE = (5.4, 3.3), (5.4, 3.7), (10.6, 3.1)


@dataclass(frozen=True)
class Picture:
    """An SVG with a text alternative and a caption."""

    svg: Markup
    caption: str
    wide: bool = False


@dataclass
class Canvas:
    """A figure being drawn: `axes` are its panels; `done` turns it into a picture."""

    name: str
    figure: Any
    axes: list[Any]
    wide: bool

    def legend(self, axis: Any, columns: int = 4, lift: float = 0.2) -> None:
        """Draw a legend above `axis`, `lift` font sizes away from it.

        Data may then be anywhere inside the axis.
        """
        axis.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=columns, borderaxespad=lift)

    def done(self, alt: str, caption: str) -> Picture:
        """Return the drawing as a picture."""
        buffer = io.StringIO()
        self.figure.savefig(
            buffer,
            format="svg",
            transparent=True,
            dpi=160,
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )
        return Picture(_inline(buffer.getvalue(), self.name, alt), caption, self.wide)


def _inline(text: str, name: str, alt: str) -> Markup:
    """Prepare an SVG for HTML: own ids, page colours and fonts, no fixed size, text alternative."""
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.S)
    head, body = re.match(r"<svg\b[^>]*>", text), text.partition(">")[2]
    box = re.search(r'viewBox="[\d. -]+"', head[0] if head else "")
    body = (
        re.sub(r'\bid="(?!\s)', f'id="{name}-', body)
        .replace('href="#', f'href="#{name}-')
        .replace("url(#", f"url(#{name}-")
    )
    body = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-size: \1", body)
    for colour, variable in VARIABLES.items():
        body = body.replace(f": {colour}", f": var(--{variable}, {colour})")
    return Markup(  # noqa: S704
        f'<svg {box[0] if box else ""} role="img" aria-label="{escape(alt)}"'
        f' xmlns:xlink="http://www.w3.org/1999/xlink">\n{body}'
    )


@contextmanager
def canvas_for(
    name: str, size: tuple[float, float] = NARROW, rows: int = 1, columns: int = 1, **grid: Any
) -> Iterator[Canvas]:
    """Yield a styled figure; the body draws on `canvas.axes` and ends with `canvas.done(alt,
    caption)`.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with warnings.catch_warnings(), matplotlib.rc_context({**STYLE, "svg.hashsalt": name}):
        # letters stay text; the browser has the glyphs
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        axes = np.atleast_1d(figure.subplots(rows, columns, **grid)).ravel().tolist()
        yield Canvas(name, figure, axes, size[0] >= WIDE[0])


def thin(x: Floats, y: Floats, limit: int = 400) -> tuple[Floats, Floats]:
    """Return at most `limit` points of a curve, evenly spaced along its length, with both ends."""
    if len(x) <= limit:
        return x, y
    spans = [float(np.ptp(v)) or 1.0 for v in (x, y)]
    length = np.concatenate(
        [[0.0], np.cumsum(np.abs(np.diff(x)) / spans[0] + np.abs(np.diff(y)) / spans[1])]
    )
    chosen = np.unique(
        np.searchsorted(length, np.linspace(0, length[-1], limit)).clip(0, len(x) - 1)
    )
    return x[chosen], y[chosen]


def sample_rows(rows: int, limit: int = MAX_POINTS) -> NDArray[np.int64]:
    """Return positions of at most `limit` rows, drawn with a fixed seed; in order."""
    if rows <= limit:
        return np.arange(rows, dtype=np.int64)
    return np.sort(np.random.default_rng(0).choice(rows, size=limit, replace=False)).astype(
        np.int64
    )


def rows_drawn(rows: int) -> str:
    """Describe how many of the rows a scatter layer shows."""
    if rows == 1:
        return "The only row is drawn."
    return (
        f"All {count(rows)} rows are drawn."
        if rows <= MAX_POINTS
        else (
            f"{count(MAX_POINTS)} of {count(rows)} rows are drawn, chosen at random with a fixed"
            " seed."
        )
    )


def count_axis(axis: Any, most: int = 6) -> None:
    """Label an axis with whole numbers and thousands separators, about `most` of them."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=most, integer=True))
    axis.set_major_formatter(FuncFormatter(lambda v, _: count(v)))


def date_axis(axis: Any) -> None:
    """Label an axis of days since 1970 with dates, as short as the range allows."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    axis.set_major_locator(AutoDateLocator(maxticks=9))
    axis.set_major_formatter(ConciseDateFormatter(axis.get_major_locator()))


def log_axis(axis: Any) -> None:
    """Set a logarithmic y axis with plain numbers at ticks, evenly spaced below a decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    axis.axes.set_yscale("log")
    low, high = axis.get_view_interval()
    axis.set_major_locator(
        MaxNLocator(nbins=5)
        if high < 8 * low
        else LogLocator(subs=(1.0, 3.0) if high < 1000 * low else (1.0,))
    )
    axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    axis.set_minor_formatter(NullFormatter())
