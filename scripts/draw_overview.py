"""
Draw the picture of the README: ``python -m scripts.draw_overview`` writes both files.

One picture in two palettes, docs/images/overview-light.svg and overview-dark.svg.  A
test holds the files to what this script draws.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeAlias
from xml.sax.saxutils import escape

from attrs import frozen


__all__ = ["DIRECTORY", "PALETTES", "overview"]

DIRECTORY: Final = Path(__file__).parent.parent / "docs" / "images"

_WIDTH: Final = 860
_HEIGHT: Final = 400
_FONT: Final = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
_MONO: Final = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
_TITLE: Final = "Lodestar: a Spark job publishes state, readers ask for it"
_DESCRIPTION: Final = (
    "The tasks of a Spark job send rows to state nodes. Its driver commits each batch "
    "at the proxy that leads. Readers ask that proxy, which asks the nodes. All of "
    "them find each other through the name service: embedded, LeaderServer or "
    "ZooKeeper."
)

Area: TypeAlias = tuple[int, int, int, int]
"""Left, top, width, height."""


@frozen(kw_only=True)
class Palette:
    """
    The colours of one picture, as CSS writes them.

    Attributes:
        text: Of headings and names.
        faint: Of explanations.
        line: Of frames.
        box: What frames are filled with.
        job: The accent of the Spark application.
        state: The accent of proxies and nodes.
        reader: The accent of readers.
        names: The accent of the name service.
    """

    text: str
    faint: str
    line: str
    box: str
    job: str
    state: str
    reader: str
    names: str


PALETTES: Final = {
    "light": Palette(
        text="#1f2328",
        faint="#59636e",
        line="#d1d9e0",
        box="#f6f8fa",
        job="#bc4c00",
        state="#0969da",
        reader="#1a7f37",
        names="#8250df",
    ),
    "dark": Palette(
        text="#f0f6fc",
        faint="#9198a1",
        line="#3d444d",
        box="#151b23",
        job="#f0883e",
        state="#58a6ff",
        reader="#3fb950",
        names="#bc8cff",
    ),
}


def overview(palette: Palette) -> str:
    """Return the picture in the colours of *palette*, as a file of SVG."""
    return "\n".join(_lines(palette)) + "\n"


def _lines(colours: Palette) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" height="{_HEIGHT}" role="img" font-family="{_FONT}">'
    )
    yield f"<title>{escape(_TITLE)}</title>"
    yield f"<desc>{escape(_DESCRIPTION)}</desc>"

    yield from _group(colours.job, (20, 16, 210, 264), "Spark job")
    yield from _box(colours, (40, 60, 170, 76), "driver", "publish_state(…)")
    yield from _box(colours, (40, 184, 170, 76), "tasks on executors", "rows by key")

    yield from _group(colours.state, (330, 16, 230, 264), "Queryable state")
    yield from _box(colours, (350, 60, 190, 76), "proxy (leads)", "one more stands by")
    for index in range(3):
        yield from _box(
            colours, (350 + 66 * index, 184, 58, 76), "node", f"{index + 1}"
        )

    yield from _group(colours.reader, (660, 16, 180, 264), "Readers")
    yield from _box(colours, (680, 60, 140, 52), "a program", "client.get(…)")
    yield from _box(colours, (680, 134, 140, 52), "a shell", "lodestar get …")
    yield from _box(colours, (680, 208, 140, 52), "Spark SQL", "USING lodestar")

    yield from _arrow(colours.job, (210, 98), (350, 98), "commit", (280, 88))
    yield from _arrow(colours.job, (210, 222), (350, 222), "rows", (280, 212))
    yield from _arrow(colours.reader, (660, 98), (540, 98), "key?", (610, 88))
    yield from _arrow(colours.state, (445, 136), (445, 184))

    yield from _group(colours.names, (20, 320, 820, 64), "Name service")
    yield _text(
        430, 350, "who leads what, and where", size=15, colour=colours.text, mono=False
    )
    yield _text(
        430,
        371,
        "embedded:NAME · leaderserver://host:port · zookeeper://h1:2181,h2:2181",
        size=12,
        colour=colours.faint,
        mono=True,
    )
    for x in (125, 445, 750):
        yield from _arrow(colours.names, (x, 320), (x, 280), is_dashed=True)
    yield "</svg>"


def _group(accent: str, area: Area, name: str) -> Iterator[str]:
    x, y, width, height = area
    yield (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="10" fill="none" '
        f'stroke="{accent}" stroke-width="1.5"/>'
    )
    yield _text(
        x + 16, y + 26, name, size=15, colour=accent, mono=False, anchor="start"
    )


def _box(colours: Palette, area: Area, name: str, detail: str) -> Iterator[str]:
    x, y, width, height = area
    middle = x + width // 2
    yield (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" '
        f'fill="{colours.box}" stroke="{colours.line}"/>'
    )
    centre = y + height // 2
    yield _text(middle, centre - 4, name, size=14, colour=colours.text, mono=False)
    yield _text(middle, centre + 15, detail, size=12, colour=colours.faint, mono=True)


def _arrow(
    colour: str,
    start: tuple[int, int],
    end: tuple[int, int],
    label: str = "",
    label_at: tuple[int, int] = (0, 0),
    *,
    is_dashed: bool = False,
) -> Iterator[str]:
    """Draw a straight arrow, level or upright, with a head of its own."""
    (x1, y1), (x2, y2) = start, end
    dashes = ' stroke-dasharray="5 4"' if is_dashed else ""
    yield (
        f'<path d="M{x1} {y1} L{x2} {y2}" stroke="{colour}" stroke-width="2" '
        f'fill="none"{dashes}/>'
    )
    along_x = (x2 > x1) - (x2 < x1)
    along_y = (y2 > y1) - (y2 < y1)
    back_x, back_y = x2 - 10 * along_x, y2 - 10 * along_y
    yield (
        f'<path d="M{x2} {y2} L{back_x - 5 * along_y} {back_y - 5 * along_x} '
        f'L{back_x + 5 * along_y} {back_y + 5 * along_x} Z" fill="{colour}"/>'
    )
    if label:
        x, y = label_at
        yield _text(x, y, label, size=13, colour=colour, mono=False)


def _text(
    x: int,
    y: int,
    text: str,
    *,
    size: int,
    colour: str,
    mono: bool,
    anchor: str = "middle",
) -> str:
    font = f' font-family="{_MONO}"' if mono else ""
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" fill="{colour}" '
        f'text-anchor="{anchor}"{font}>{escape(text)}</text>'
    )


if __name__ == "__main__":
    DIRECTORY.mkdir(exist_ok=True)
    for name, colours in PALETTES.items():
        file = DIRECTORY / f"overview-{name}.svg"
        file.write_text(overview(colours), encoding="utf-8")
        print(file)
