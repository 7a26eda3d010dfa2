"""Keys of a state: never a silent miss, sorted bytes, Spark's key group."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nameservice import ConfigurationError, RemoteProtocolError
from queryablestate import KeyTooLargeError, WrongKeyTypeError
from queryablestate.schema.keys import KEY_SIZE_BYTES_MAX, KeyCodec
from queryablestate.schema.schema import (
    ArrayType,
    AtomicType,
    DataType,
    DecimalType,
    Field,
    MapType,
)
from rescaling.key_groups import MAX_PARALLELISM_MAX
from tests.queryablestate.typed_values import (
    fields_of,
    key_types,
    keys_of,
    rank,
    struct_of,
)


TAILNUM = Field("tailnum", AtomicType.STRING)
DAY = Field("day", AtomicType.DATE)
PAIR = Field("pair", struct_of(AtomicType.STRING, AtomicType.INT))


def codec_of(*fields: Field, max_parallelism: int = 128) -> KeyCodec:
    """Return the codec of these key columns."""
    return KeyCodec(fields, max_parallelism=max_parallelism)


def of_types(*types: DataType) -> KeyCodec:
    """Return the codec of key columns a, b, c, … of these types."""
    return KeyCodec(fields_of(*types), max_parallelism=128)


BY_STRING = codec_of(TAILNUM)
BY_BIGINT = of_types(AtomicType.BIGINT)
BY_BOTH = codec_of(TAILNUM, DAY)


def string_of(encoded: bytes) -> Any:
    """Return the string that *encoded* begins with."""
    (value,) = BY_STRING.decode(encoded[: BY_STRING.size_of(encoded)])
    return value


class TestKeyCodec:
    """What a codec is made of."""

    def test_a_key_has_a_column(self) -> None:
        """Without one there is nothing to hash."""
        with pytest.raises(ConfigurationError, match="at least one column"):
            codec_of()

    @pytest.mark.parametrize("max_parallelism", [0, -1, MAX_PARALLELISM_MAX + 1])
    def test_max_parallelism_is_in_its_range(self, max_parallelism: int) -> None:
        """A key group takes two bytes."""
        with pytest.raises(ConfigurationError, match="1 to 32768"):
            codec_of(TAILNUM, max_parallelism=max_parallelism)

    def test_no_map_is_a_key(self) -> None:
        """Spark cannot hash one."""
        with pytest.raises(ConfigurationError, match="'a' cannot have type map"):
            of_types(MapType(AtomicType.INT, AtomicType.INT))


class TestNormalize:
    """One key, one value: what equal keys have in common."""

    @pytest.mark.parametrize(
        ("codec", "key", "expected"),
        [
            (BY_STRING, "N14228", "N14228"),
            (BY_STRING, None, None),
            (BY_BOTH, ("N14228", date(2013, 1, 1)), ("N14228", date(2013, 1, 1))),
            (BY_BOTH, {"day": None, "tailnum": "N1"}, ("N1", None)),
            (BY_BOTH, (None, None), (None, None)),
            (codec_of(PAIR), {"a": "x", "b": 1}, ("x", 1)),
            (codec_of(PAIR, DAY), (("x", 1), None), (("x", 1), None)),
            (of_types(ArrayType(AtomicType.INT)), [1, None], (1, None)),
            (of_types(AtomicType.DOUBLE), -0.0, 0.0),
            (of_types(AtomicType.DOUBLE), 3, 3.0),
            (of_types(DecimalType(5, 2)), Decimal(1), Decimal("1.00")),
            (
                of_types(AtomicType.TIMESTAMP),
                datetime(2024, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))),
                datetime(2024, 1, 1, tzinfo=UTC),
            ),
        ],
    )
    def test_the_key_columns_decide(
        self, codec: KeyCodec, key: object, expected: object
    ) -> None:
        """A bare value for one column, a tuple in the order of several."""
        found = codec.normalize(key)
        assert repr(found) == repr(expected)
        assert isinstance(hash(found), int)

    @pytest.mark.parametrize(
        ("codec", "key", "detail"),
        [
            (BY_STRING, 14228, "tailnum takes a str, not int"),
            (BY_STRING, ("N14228",), "tailnum takes a str, not tuple"),
            (BY_STRING, "\ud800", "surrogates"),
            (BY_BIGINT, "1", "a takes an int, not str"),
            (BY_BIGINT, True, "a takes an int, not bool"),
            (BY_BIGINT, 1 << 63, "a is out of the range of bigint"),
            (BY_BOTH, "N14228", "a tuple of (tailnum, day) is wanted, not str"),
            (BY_BOTH, ["N14228", None], "a tuple of (tailnum, day) is wanted"),
            (BY_BOTH, ("N14228",), "(tailnum, day) takes 2 values, not 1"),
            (BY_BOTH, {"tailnum": "N14228"}, "the field day is missing"),
            (BY_BOTH, ("N1", datetime(2013, 1, 1, tzinfo=UTC)), "day takes a date"),
            (codec_of(PAIR), ("x", "1"), "pair.b takes an int, not str"),
        ],
    )
    def test_what_no_row_could_have_is_an_error(
        self, codec: KeyCodec, key: object, detail: str
    ) -> None:
        """Every way of asking refuses a key that could only be missed in silence."""
        for ask in (
            codec.normalize,
            codec.encode,
            codec.key_group,
            codec.storage_key,
            lambda key: codec.storage_keys([key]),
        ):
            with pytest.raises(WrongKeyTypeError) as caught:
                ask(key)
            assert caught.value.key is key
            assert detail in caught.value.detail

    def test_the_error_names_the_key_columns(self) -> None:
        """A user sees what the key should have been."""
        with pytest.raises(WrongKeyTypeError) as caught:
            BY_BOTH.encode(1)
        assert caught.value.expected == "tailnum string, day date"

    @given(st.data())
    def test_it_is_what_is_read_back(self, data: st.DataObject) -> None:
        """A key of a scan can be asked for, and is the same key."""
        types = data.draw(st.lists(key_types(), min_size=1, max_size=3))
        codec = of_types(*types)
        columns = tuple(data.draw(keys_of(one)) for one in types)
        key = columns if len(types) > 1 else columns[0]
        normal = codec.normalize(key)
        # In a tuple: a NaN is itself, though it does not equal itself.
        assert (codec.normalize(normal),) == (normal,)
        assert codec.decode(codec.encode(key)) == (
            normal if len(types) > 1 else (normal,)
        )
        assert codec.storage_key(normal) == codec.storage_key(key)


class TestOrder:
    """Encoded keys sort as keys do."""

    @given(st.data())
    def test_keys_of_several_columns_sort_column_by_column(
        self, data: st.DataObject
    ) -> None:
        """Sorted by bytes is sorted by value, nulls first."""
        types = data.draw(st.lists(key_types(), min_size=2, max_size=3))
        codec = of_types(*types)
        key = st.tuples(*(keys_of(one) for one in types))
        keys = data.draw(st.lists(key, min_size=2, max_size=6))
        by_bytes = [rank(one) for one in sorted(keys, key=codec.encode)]
        assert by_bytes == sorted(rank(one) for one in keys)

    @pytest.mark.parametrize(
        ("data_type", "keys"),
        [
            (AtomicType.STRING, [None, "", "\x00", "\x00\x00", "\x01", "a", "a\x00"]),
            (AtomicType.STRING, ["a", "a\x00b", "a\x01", "aa", "z", "é", "€", "😀"]),
            (
                AtomicType.DOUBLE,
                [
                    None,
                    -math.inf,
                    -1e300,
                    -5e-324,
                    0.0,
                    5e-324,
                    1.0,
                    math.inf,
                    math.nan,
                ],
            ),
            (DecimalType(38, 2), [None, Decimal("-1E35"), Decimal("-0.01"), 0, 10**35]),
            (AtomicType.DATE, [date(1, 1, 1), date(1969, 12, 31), date(9999, 12, 31)]),
            (
                ArrayType(AtomicType.INT),
                [None, [], [None], [None, 1], [-1], [0], [0, 0]],
            ),
        ],
    )
    def test_the_edges_are_in_order(
        self, data_type: DataType, keys: list[object]
    ) -> None:
        """The values at which an encoding goes wrong if it does."""
        encoded = [of_types(data_type).encode(key) for key in keys]
        assert encoded == sorted(encoded)
        assert len(set(encoded)) == len(keys)


class TestKeyGroup:
    """Key groups are Spark's ``pmod(xxhash64(…), n)``."""

    @pytest.mark.parametrize("max_parallelism", [1, 2, 3, 128, 200, 32_768])
    @pytest.mark.parametrize(
        ("data_type", "key", "spark_hash"),
        [
            (AtomicType.STRING, "", -7444071767201028348),
            (AtomicType.STRING, "user-1", 3245521771936779939),
            (AtomicType.STRING, None, 42),
            (AtomicType.BIGINT, 1, -7001672635703045582),
            (AtomicType.INT, 1, -6698625589789238999),
            (AtomicType.DATE, date(2024, 1, 1), 3242891694566951137),
        ],
    )
    def test_it_is_not_negative_where_the_hash_is(
        self, data_type: DataType, key: object, spark_hash: int, max_parallelism: int
    ) -> None:
        """Python's remainder of the signed hash, by the fast ways as by the others."""
        codec = codec_of(Field("k", data_type), max_parallelism=max_parallelism)
        expected = spark_hash % max_parallelism
        assert codec.key_group(key) == expected
        assert codec.storage_key(key)[:2] == expected.to_bytes(2, "big")

    def test_columns_are_chained_and_nulls_passed_over(self) -> None:
        """``(null, 'a')`` hashes as ``'a'``, but is another key."""
        both = of_types(AtomicType.STRING, AtomicType.STRING)
        assert both.key_group((None, "a")) == BY_STRING.key_group("a")
        assert both.encode((None, "a")) != both.encode(("a", None))

    @given(
        st.lists(st.text("a\x00é😀"), max_size=5)
        | st.lists(st.none() | st.text("a\x00é😀"), max_size=5),
        st.sampled_from([1, 7, 128, 1000]),
    )
    def test_many_strings_are_many_times_one(
        self, keys: list[str | None], max_parallelism: int
    ) -> None:
        """The fast way of one string column gives what the general one does."""
        codec = codec_of(TAILNUM, max_parallelism=max_parallelism)
        expected = [
            codec.key_group(key).to_bytes(2, "big") + codec.encode(key) for key in keys
        ]
        assert codec.storage_keys(keys) == expected
        assert [codec.storage_key(key) for key in keys] == expected

    def test_one_of_many_strings_that_is_none_is_named(self) -> None:
        """A lone surrogate has no bytes."""
        with pytest.raises(WrongKeyTypeError, match="surrogates"):
            BY_STRING.storage_keys(["a", "\ud800", "b"])

    @given(st.lists(st.none() | st.integers(-(1 << 63), (1 << 63) - 1), max_size=5))
    def test_many_integers_are_many_times_one(self, keys: list[int | None]) -> None:
        """The fast way of one bigint column gives what the general one does."""
        assert BY_BIGINT.storage_keys(keys) == [
            BY_BIGINT.key_group(key).to_bytes(2, "big") + BY_BIGINT.encode(key)
            for key in keys
        ]

    def test_many_keys_of_any_type_are_many_times_one(self) -> None:
        """And so does every other kind of key."""
        keys = [("N1", date(2013, 1, 1)), (None, None), ("N2", None)]
        assert BY_BOTH.storage_keys(keys) == [
            BY_BOTH.key_group(key).to_bytes(2, "big") + BY_BOTH.encode(key)
            for key in keys
        ]

    def test_a_string_of_another_class_is_a_string(self) -> None:
        """What only looks like a str to the fast way goes the general one."""

        class Name(str):
            __slots__ = ()

        assert BY_STRING.storage_key(Name("a")) == BY_STRING.storage_key("a")


class TestSize:
    """An encoded key has at most `KEY_SIZE_BYTES_MAX` bytes."""

    def test_a_string_may_be_as_long_as_fits(self) -> None:
        """The mark and the end take three bytes; one byte more is one too many."""
        key = "x" * (KEY_SIZE_BYTES_MAX - 3)
        assert len(BY_STRING.encode(key)) == KEY_SIZE_BYTES_MAX
        assert len(BY_STRING.storage_key(key)) == KEY_SIZE_BYTES_MAX + 2
        for ask in (BY_STRING.encode, BY_STRING.storage_key):
            with pytest.raises(KeyTooLargeError) as caught:
                ask(key + "x")
            assert caught.value.size_bytes == KEY_SIZE_BYTES_MAX + 1
            assert caught.value.size_bytes_max == KEY_SIZE_BYTES_MAX

    def test_zero_bytes_count_twice(self) -> None:
        """It is the encoded key that LMDB has to take."""
        key = "\x00" * (KEY_SIZE_BYTES_MAX // 2 - 1)
        for ask in (BY_STRING.encode, BY_STRING.storage_key):
            with pytest.raises(KeyTooLargeError, match=str(KEY_SIZE_BYTES_MAX + 1)):
                ask(key)

    def test_every_kind_of_key_has_the_limit(self) -> None:
        """Also those of several columns."""
        with pytest.raises(KeyTooLargeError):
            BY_BOTH.storage_keys([("x" * KEY_SIZE_BYTES_MAX, None)])
        with pytest.raises(KeyTooLargeError, match=str(KEY_SIZE_BYTES_MAX + 3)):
            BY_STRING.storage_keys(["a", "x" * KEY_SIZE_BYTES_MAX, "b"])

    def test_a_prefix_has_it_too(self) -> None:
        """Nothing begins with more than fits."""
        with pytest.raises(KeyTooLargeError):
            BY_STRING.encode_prefix("x" * KEY_SIZE_BYTES_MAX)


class TestMapKey:
    """The second key of a map state."""

    codec = KeyCodec((TAILNUM,), max_parallelism=128, map_fields=(DAY, TAILNUM))

    def test_it_follows_the_key(self) -> None:
        """An entry's storage key can be taken apart again."""
        entry = self.codec.map_entry_key("N1", (date(2013, 1, 1), None))
        assert entry[:2] == self.codec.key_group("N1").to_bytes(2, "big")
        size_bytes = self.codec.size_of(entry[2:])
        key, rest = entry[2 : 2 + size_bytes], entry[2 + size_bytes :]
        assert self.codec.decode(key) == ("N1",)
        assert rest == self.codec.encode_map_key((date(2013, 1, 1), None))
        assert self.codec.decode_map_key(rest) == (date(2013, 1, 1), None)

    def test_it_has_no_part_in_the_key_group(self) -> None:
        """All entries of a key are in one place."""
        other = KeyCodec((TAILNUM,), max_parallelism=128)
        assert self.codec.key_group("N1") == other.key_group("N1")

    def test_one_column_is_a_bare_value(self) -> None:
        """As it is for keys."""
        codec = KeyCodec((TAILNUM,), max_parallelism=128, map_fields=(DAY,))
        assert codec.decode_map_key(codec.encode_map_key(None)) == (None,)

    def test_a_wrong_one_is_an_error(self) -> None:
        """It names the columns of the map key."""
        with pytest.raises(WrongKeyTypeError) as caught:
            self.codec.map_entry_key("N1", "2013-01-01")
        assert caught.value.expected == "day date, tailnum string"

    def test_both_keys_share_the_limit(self) -> None:
        """Each may be short enough, and both together too long."""
        half = "x" * (KEY_SIZE_BYTES_MAX // 2)
        assert self.codec.encode(half)
        assert self.codec.encode_map_key((None, half))
        with pytest.raises(KeyTooLargeError) as caught:
            self.codec.map_entry_key(half, (None, half))
        assert caught.value.size_bytes == 2 * (KEY_SIZE_BYTES_MAX // 2 + 3) + 1
        with pytest.raises(KeyTooLargeError):
            self.codec.encode_map_key((None, half + half))


class TestPrefix:
    """What a scan may begin with."""

    @given(key=st.text("a\x00é"), prefix=st.text("a\x00é", max_size=3))
    def test_a_string_begins_with_a_string(self, key: str, prefix: str) -> None:
        """Encoded keys begin with the encoded prefix exactly when keys do."""
        encoded = BY_STRING.encode(key).startswith(BY_STRING.encode_prefix(prefix))
        assert encoded is key.startswith(prefix)

    def test_bytes_begin_with_bytes(self) -> None:
        """Of the type that the column has."""
        codec = of_types(AtomicType.BINARY)
        assert codec.encode(b"\x00ab").startswith(codec.encode_prefix(b"\x00a"))

    def test_the_empty_prefix_leaves_null_out(self) -> None:
        """Null begins with nothing."""
        assert not BY_STRING.encode(None).startswith(BY_STRING.encode_prefix(""))

    @given(key=st.tuples(st.text("ab"), st.dates()), name=st.text("ab"))
    def test_leading_columns_are_compared_as_a_whole(
        self, key: tuple[Any, ...], name: str
    ) -> None:
        """``"a"`` is no prefix of ``("ab", …)`` where there are several columns."""
        encoded = BY_BOTH.encode(key)
        assert encoded.startswith(BY_BOTH.encode_prefix((name,))) is (key[0] == name)

    def test_it_may_have_no_column_and_all(self) -> None:
        """The empty tuple is what all keys begin with."""
        key = ("N1", None)
        assert BY_BOTH.encode_prefix(()) == b""
        assert BY_BOTH.encode_prefix(key) == BY_BOTH.encode(key)

    @pytest.mark.parametrize(
        ("codec", "prefix", "detail"),
        [
            (BY_STRING, 1, "tailnum takes a str"),
            (BY_STRING, None, "nothing begins with null"),
            (BY_STRING, ("N1",), "tailnum takes a str"),
            (BY_BIGINT, 1, "use start and stop"),
            (BY_BOTH, "N1", "a tuple of values for the first key columns"),
            (BY_BOTH, ("N1", None, 1), "a tuple of values for the first key columns"),
            (BY_BOTH, (1,), "tailnum takes a str"),
        ],
    )
    def test_others_are_errors(
        self, codec: KeyCodec, prefix: object, detail: str
    ) -> None:
        """A prefix that could match nothing is told, not scanned for."""
        with pytest.raises(WrongKeyTypeError, match=detail):
            codec.encode_prefix(prefix)


class TestDecode:
    """Bytes that come from a node."""

    def test_what_follows_a_key_is_no_part_of_it(self) -> None:
        """The index of a list's item, for one."""
        encoded = BY_BOTH.encode(("N1", None))
        assert BY_BOTH.size_of(encoded + b"\x00" * 8) == len(encoded)

    @pytest.mark.parametrize(
        ("codec", "encoded"),
        [
            (BY_STRING, b""),
            (BY_STRING, b"\x01a"),
            (BY_STRING, b"\x01a\x00\x00more"),
            (BY_BIGINT, b"\x01\x80"),
            (of_types(AtomicType.DOUBLE), b"\x01\x80"),
            (of_types(AtomicType.DATE), b"\x01\xff\xff\xff\xff"),
            (of_types(AtomicType.TIMESTAMP), b"\x01" + b"\xff" * 8),
            (of_types(DecimalType(1, 0)), b"\x01" + b"\xff" * 8),
        ],
    )
    def test_damaged_keys_are_the_peer_s_fault(
        self, codec: KeyCodec, encoded: bytes
    ) -> None:
        """One error, whatever Python's libraries think of them."""
        with pytest.raises(RemoteProtocolError):
            codec.decode(encoded)

    @given(st.binary(max_size=40))
    def test_no_bytes_do_harm(self, encoded: bytes) -> None:
        """Any bytes are a key, or that error."""
        codec = of_types(
            ArrayType(struct_of(AtomicType.STRING, DecimalType(3, 1))),
            AtomicType.TIMESTAMP,
        )
        try:
            codec.columns([encoded])
        except RemoteProtocolError as error:
            reasons = {"malformed", "no-python-value"}
            assert error.reason in reasons  # noqa: PT017  # either is right

    @given(data=st.data())
    def test_many_keys_at_once(self, data: st.DataObject) -> None:
        """Column by column, they are what each is by itself; an index is left out."""
        types = data.draw(
            st.sampled_from([[AtomicType.STRING], [AtomicType.BIGINT]])
            | st.lists(key_types(), min_size=1, max_size=2)
        )
        codec = of_types(*types)
        keys = data.draw(st.lists(st.tuples(*map(keys_of, types)), max_size=4))
        rest = data.draw(st.sampled_from([b"", bytes(8), b"\x01"]))
        encoded = [
            codec.encode(key if len(types) > 1 else key[0]) + rest for key in keys
        ]
        columns = codec.columns(encoded)
        assert len(columns) == len(types)
        rows = list(zip(*columns, strict=True))
        assert [codec.size_of(one) for one in encoded] == [
            len(one) - len(rest) for one in encoded
        ]
        assert repr(rows) == repr(
            [codec.decode(one[: codec.size_of(one)]) for one in encoded]
        )

    @pytest.mark.parametrize(
        "encoded",
        [
            [b"\1a", b"b\0\0"],
            [b"\1a\0", b"\0\1b\0\0"],
            [b"\1a\0\0", b"\2b\0\0"],
            [b"\1a\0\0", b""],
            [b"\1\0\0\1"],
        ],
    )
    def test_many_of_which_one_is_no_key(self, encoded: list[bytes]) -> None:
        """It is read as it is by itself, whatever stands beside it."""
        try:
            expected = [string_of(one) for one in encoded]
        except RemoteProtocolError:
            with pytest.raises(RemoteProtocolError):
                BY_STRING.columns(encoded)
        else:
            assert BY_STRING.columns(encoded) == [expected]

    def test_many_entries_of_maps(self) -> None:
        """The columns of the map key come behind those of the key."""
        codec = KeyCodec(
            [TAILNUM], max_parallelism=8, map_fields=fields_of(AtomicType.INT)
        )
        encoded = [codec.map_entry_key(*one)[2:] for one in [("N1", 1), (None, None)]]
        assert codec.all_columns(encoded) == [["N1", None], [1, None]]
        assert codec.all_columns([]) == [[], []]
        with pytest.raises(RemoteProtocolError):
            codec.all_columns([encoded[0] + b"x"])

    @given(st.lists(st.text("ab\0\1é"), max_size=4), st.data())
    def test_damaged_strings_are_never_taken_for_others(
        self, texts: list[str], data: st.DataObject
    ) -> None:
        """Bytes that were lost or added do not shift what is read of other keys."""
        encoded = [BY_STRING.encode(text) for text in texts]
        if encoded:
            place = data.draw(st.integers(0, len(encoded) - 1))
            encoded[place] = data.draw(st.binary(max_size=6))
        try:
            expected = [string_of(one) for one in encoded]
        except RemoteProtocolError:
            with pytest.raises(RemoteProtocolError):
                BY_STRING.columns(encoded)
        else:
            assert BY_STRING.columns(encoded) == [expected]
