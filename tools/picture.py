"""Drawing of docs/assets/architecture.svg from architecture.txt beside it: python -m tools.picture [--check].

The text describes boxes and arrows and explains its own format. `make reference` writes the drawing; tests/test_docs.py
fails when it differs from the text. The drawing brings its own background, so it is readable in light and in dark mode.
"""

import sys
from html import escape
from pathlib import Path
from typing import NamedTuple

ASSETS = Path(__file__).resolve().parent.parent / "docs" / "assets"
SOURCE, DRAWING = ASSETS / "architecture.txt", ASSETS / "architecture.svg"

_HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" font-family="system-ui, sans-serif">
<title>{title}</title>
<style>
.ground {{ fill: #ffffff; stroke: #d0d7de }}
.panel {{ fill: #f6f8fa; stroke: #d0d7de }}
.box {{ fill: #ddf4ff; stroke: #54aeff }}
.line {{ fill: none; stroke: #57606a; stroke-width: 1.5 }}
.dashed {{ stroke-dasharray: 5 4 }}
.head {{ fill: #57606a }}
text {{ fill: #1f2328; font-size: 15px }}
.small {{ font-size: 12px; fill: #424a53 }}
@media (prefers-color-scheme: dark) {{
.ground {{ fill: #0d1117; stroke: #3d444d }}
.panel {{ fill: #161b22; stroke: #3d444d }}
.box {{ fill: #12304f; stroke: #388bfd }}
.line {{ stroke: #9198a1 }}
.head {{ fill: #9198a1 }}
text {{ fill: #f0f6fc }}
.small {{ fill: #c9d1d9 }}
}}
</style>
<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" \
orient="auto-start-reverse"><path class="head" d="M0 0 L8 4 L0 8 z"/></marker></defs>
<rect class="ground" x="0.5" y="0.5" width="{right}" height="{bottom}" rx="8"/>"""


class Point(NamedTuple):
    """A place on the canvas, in pixels."""

    x: int
    y: int


class Area(NamedTuple):
    """A rectangle on the canvas, in pixels."""

    x: int
    y: int
    width: int
    height: int

    def edge(self, side: str, offset: int) -> Point:
        """Return the point `offset` pixels from the middle of side n, e, s or w."""
        if side in "ns":
            return Point(self.x + self.width // 2 + offset, self.y if side == "n" else self.y + self.height)
        return Point(self.x if side == "w" else self.x + self.width, self.y + self.height // 2 + offset)


def draw(text: str) -> str:
    """Return the SVG of a description.

    Raises:
        ValueError: A line names no known shape, or numbers are missing.
        KeyError: An arrow starts or ends at a name that no line above it has.
    """
    areas: dict[str, Area] = {}
    drawn: list[str] = []
    for line in text.splitlines():
        words, *labels = (part.strip() for part in line.split("|"))
        match words.split():
            case [] | ["#", *_] | ["#"]:
                continue
            case ["canvas", width, height]:
                title = "Architecture of TandemQ: clients, name servers, registry, broker groups, Spark pipeline"
                size = {"width": int(width), "height": int(height), "right": int(width) - 1, "bottom": int(height) - 1}
                drawn.append(_HEAD.format(title=title, **size))
            case ["panel" | "box" as kind, name, x, y, width, height]:
                areas[name] = Area(int(x), int(y), int(width), int(height))
                drawn += _rectangle(kind, areas[name], labels)
            case ["arrow", start, end, *marks]:
                drawn += _arrow(_end(areas, start), _end(areas, end), marks, labels[0])
            case _:
                raise ValueError(f"no shape: {line}")
    return "\n".join([*drawn, "</svg>\n"])


def _rectangle(kind: str, area: Area, labels: list[str]) -> list[str]:
    middle = area.x + area.width // 2
    top = area.y + (25 if kind == "box" else 26)
    lines = [
        f'<rect class="{kind}" x="{area.x}" y="{area.y}" width="{area.width}" height="{area.height}" rx="6"/>',
        f'<text x="{middle}" y="{top}" text-anchor="middle" font-weight="600">{escape(labels[0])}</text>',
    ]
    lines += [_small(Point(middle, top + 20), "middle", label) for label in labels[1:]]
    return lines


def _end(areas: dict[str, Area], written: str) -> tuple[str, Point]:
    """Return (side, point) of an arrow's end such as `master.s-50`."""
    name, _, where = written.partition(".")
    return where[0], areas[name].edge(where[0], int(where[1:] or 0))


def _arrow(start: tuple[str, Point], end: tuple[str, Point], marks: list[str], label: str) -> list[str]:
    (side, first), (_, last) = start, end
    if side in "ns":
        bends = [] if first.x == last.x else [Point(first.x, last.y)]
    else:
        middle = (first.x + last.x) // 2
        bends = [] if first.y == last.y else [Point(middle, first.y), Point(middle, last.y)]
    points = [first, *bends, last]
    path = " ".join(f"{point.x},{point.y}" for point in points)
    ends = 'marker-end="url(#head)"' + (' marker-start="url(#head)"' if "both" in marks else "")
    dashed = " dashed" if "dashed" in marks else ""
    before = points[-2]
    if before.y == last.y:
        place, anchor = Point((before.x + last.x) // 2, last.y - 6), "middle"
    else:
        aside = -8 if "left" in marks else 8
        place, anchor = Point(last.x + aside, (before.y + last.y) // 2 + 4), "end" if "left" in marks else "start"
    return [f'<polyline class="line{dashed}" points="{path}" {ends}/>', _small(place, anchor, label)]


def _small(place: Point, anchor: str, text: str) -> str:
    return f'<text class="small" x="{place.x}" y="{place.y}" text-anchor="{anchor}">{escape(text)}</text>'


def is_stale() -> bool:
    """Return whether the drawing differs from its description."""
    return not DRAWING.exists() or DRAWING.read_text(encoding="utf-8") != draw(SOURCE.read_text(encoding="utf-8"))


def main() -> int:
    """Write the drawing; with --check only compare it: exit code 1 if it differs from its description."""
    if is_stale() and "--check" in sys.argv[1:]:
        print("docs/assets/architecture.svg differs from architecture.txt: run `make reference`")
        return 1
    DRAWING.write_text(draw(SOURCE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
