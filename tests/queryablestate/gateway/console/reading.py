"""Reading pages as tests do: their text, and the texts of some elements."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any, Final, final

from starlette.requests import Request


__all__ = ["Page", "request_for"]

_VOID: Final = frozenset({"meta", "link", "img", "input", "br"})


def request_for(path: str) -> Request:
    """Return a request of nobody for *path*."""
    scope: dict[str, Any] = {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": b"",
        "headers": [],
    }
    return Request(scope)


@final
class Page(HTMLParser):
    """
    One page.

    Args:
        body: As it came.

    Attributes:
        elements: Name, attributes, text and names of what it stands in, of each.
    """

    def __init__(self, body: bytes) -> None:
        super().__init__(convert_charrefs=True)
        self.source = body.decode()
        self.elements: list[tuple[str, dict[str, str], list[str], tuple[str, ...]]] = []
        self._open: list[int] = []
        self._texts: list[str] = []
        self.feed(self.source)
        self.close()
        assert not self._open, "an element is not closed"

    @property
    def text(self) -> str:
        """Return all text, with single blanks."""
        return " ".join(" ".join(self._texts).split())

    def texts(self, names: str) -> list[str]:
        """Return the texts of elements of the last one of *names*, in the others."""
        *outer, last = names.split()
        return [
            " ".join(" ".join(parts).split())
            for name, _, parts, around in self.elements
            if name == last and set(outer) <= set(around)
        ]

    def attributes(self, name: str) -> list[dict[str, str]]:
        """Return the attributes of each element of that name."""
        return [given for found, given, _, _ in self.elements if found == name]

    def links(self) -> list[str]:
        """Return where links lead to."""
        return [given["href"] for given in self.attributes("a") if "href" in given]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take note of an element."""
        around = tuple(self.elements[place][0] for place in self._open)
        given = {name: value or "" for name, value in attrs}
        self.elements.append((tag, given, [], around))
        if tag not in _VOID:
            self._open.append(len(self.elements) - 1)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take note of an element that ends at once."""
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        """Take note of the end of an element; they end in the order that they must."""
        assert self.elements[self._open.pop()][0] == tag, tag

    def handle_data(self, data: str) -> None:
        """Take note of text."""
        self._texts.append(data)
        for place in self._open:
            self.elements[place][2].append(data)
