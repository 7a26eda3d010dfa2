"""Schemas, keys and values: their types, their stored forms and their text."""
