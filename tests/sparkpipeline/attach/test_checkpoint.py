"""Spark's offset log, in both of its formats (O5); pure."""

from __future__ import annotations

import pytest

from nameservice import ConfigurationError, StorageError
from sparkpipeline.attach.checkpoint import split_offsets


def offsets(*lines: str) -> list[str]:
    """Return the offsets of a file of *lines*, the second of which is Spark's own."""
    version, *others = lines
    return split_offsets("\n".join([version, '{"conf":{"a":"b"}}', *others]), "dir/7")


@pytest.mark.proves("O5")
class TestOffsets:
    def test_each_line_is_one_source(self) -> None:
        """O5: a source is found by its index; one without an offset counts, too."""
        assert offsets("v1", '{"a": 1}', "-", "3") == ['{"a": 1}', "-", "3"]
        assert offsets("v1") == offsets("v2") == []

    @pytest.mark.parametrize("character", ["\u2028", "\u2029", "\x85", "\x0c", "\x1e"])
    def test_only_a_line_feed_ends_a_line(self, character: str) -> None:
        """O5: a path with such a character in one source moves no other one."""
        one = f'{{"path": "{character}"}}'
        assert offsets("v1", one, "2") == [one, "2"]
        assert offsets("v2", f"0:{one}", "1:2") == [one, "2"]
        head = f'v1\n{{"conf": "{character}"}}\n5'
        assert split_offsets(head, "dir/7") == ["5"]

    def test_sources_with_numbers_are_put_in_order(self) -> None:
        """O5: Spark writes them as they come out of a map."""
        lines = [f'{index}:{{"at": "{index}:"}}' for index in (5, 10, 2, 9, 0, 1)]
        lines += ["3:-", "4:4", "6:6", "7:7", "8:8"]
        found = offsets("v2", *lines)
        assert found[:5] == ['{"at": "0:"}', '{"at": "1:"}', '{"at": "2:"}', "-", "4"]
        assert found[9:] == ['{"at": "9:"}', '{"at": "10:"}']

    def test_one_source_may_have_a_name(self) -> None:
        """O5: of several with names the order is not known; it says what to set."""
        assert offsets("v2", 'flights:{"at": 1}') == ['{"at": 1}']
        with pytest.raises(ConfigurationError, match=r"a, b.*enableSourceEvolution"):
            offsets("v2", "b:{}", "a:{}")
        with pytest.raises(ConfigurationError, match="enableSourceEvolution"):
            offsets("v2", "1:{}", "2:{}")

    def test_another_format_is_told(self) -> None:
        """O5: it is not taken for one of these; it says what to set."""
        with pytest.raises(ConfigurationError, match=r"'v3'.*offsetLog\.formatVersion"):
            offsets("v3", "{}")
        with pytest.raises(StorageError, match="dir/7 has a line without the id"):
            offsets("v2", "{}")
