"""Keyed state that can be asked from outside, and the routing to it."""

from __future__ import annotations


__all__: list[str] = []
