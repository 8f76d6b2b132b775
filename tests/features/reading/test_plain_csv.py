"""Files that Arrow reads in place of pandas: the frame is pandas' own, whatever is in the file."""

import io

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.reading.plain_csv import read_plain
from tests.examples import examples

NULLS = ["", "NA"]
TYPES = {"t": "string", "n": "float64", "i": "int64"}


def pandas_reads(content, dtypes=TYPES, separator=","):
    frame = pd.read_csv(io.BytesIO(content), sep=separator, na_values=NULLS, keep_default_na=False, low_memory=False,
                        dtype={name: "str" for name, dtype in dtypes.items() if dtype == "string"})  # fmt: skip
    return frame[list(dtypes)]


def plain(content, dtypes=TYPES, separator=","):
    text = [name for name, dtype in dtypes.items() if dtype == "string"]
    return read_plain(content, separator, dtypes, text, NULLS)


def same_bits(found, expected):
    pd.testing.assert_frame_equal(found, expected, check_exact=True, check_flags=False)
    assert [column.dtype for _, column in found.items()] == [column.dtype for _, column in expected.items()]
    for name in expected.columns:
        if expected[name].dtype.kind == "f":
            assert found[name].to_numpy().tobytes() == expected[name].to_numpy().tobytes()
        elif expected[name].dtype == "str":
            assert found[name].array.__arrow_array__().type == expected[name].array.__arrow_array__().type


def test_text_and_whole_numbers_with_and_without_nulls():
    content = b'extra,i,t,n\n1.5,3,"a, ""b""",7\nx,-4,NA,\n,5,007,NA\n"",6," c ",8'
    same_bits(plain(content), pandas_reads(content))
    assert plain(content)["t"].tolist()[0] == 'a, "b"'


@pytest.mark.parametrize(
    "content",
    [
        b"i,t,n\n1,a,1.5\n", b"i,t,n\n1,a,-0\n2,b,\n", b"i,t,n\n0x1F,a,1\n", b"i,t,n\n1,a,1\n\n2,b,2\n",
        b'i,t,n\n1,"a\nb",1\n', b"i,t,n\r\n1,a,1\r\n", b"i,t,n\n1,a\n", b"i,t,n\n1,a,1,9\n", b"i,t,n,n\n1,a,1,2\n",
        b"i,t\n1,a\n", b"i,t,n\n", b"i,t,n\n1,a\0,1\n", b"i,t,n\n1,\xff,1\n", b"i,t,n,o\n1,a,1,\xff\n",
        b"i,t,n\n9007199254740993,a,9007199254740993\n2,b,\n", b"i,t,n\n99999999999999999999,a,1\n",
        b"i,t,n\n+1,a,2\n", b"i,t,n\nyes,a,2\n", b'i,t,n\n1,a"b,2\n', b'"i",t,n\n1,a,2\n',
        b"\xef\xbb\xbfi,t,n\n1,a,2\n", b'i,t,n\n1,0x,1\n" 0X1F",0x,1\n', b'i,t,n\n0,-0,0\n1,"-0",-0\n2,-0,\n',
    ],
)  # fmt: skip
def test_what_pandas_might_read_otherwise_is_left_to_pandas(content):
    assert plain(content) is None


def test_text_that_looks_like_a_number_in_base_16_or_a_negative_zero_is_text():
    """An id such as 0XK9 sent a whole log to pandas' slow parser."""
    content = b'i,t,n\n0,0XK9,0\n1,"-0x, 0x"" -0",\n2,-0,3\n3, 0x1F,4'
    same_bits(plain(content), pandas_reads(content))
    assert plain(content)["t"].tolist() == ["0XK9", '-0x, 0x" -0', "-0", " 0x1F"]


@pytest.mark.parametrize(
    ("first", "last"),
    [(b'12" pipe', b'3,"he said'), (b'12" pipe', b'3,"he said\n'), (b"a", b'3" a,"he said'), (b"a", b'3" a,"x, b\n')],
)
def test_a_file_that_ends_within_quotes_is_left_to_pandas_which_refuses_it(first, last):
    """Literal quotes within other fields made their number even, and Arrow closes what is open."""
    content = b"i,n,t\n1,1," + first + b"\n2," + last
    text = {"i": "int64", "n": "string", "t": "string"}
    with pytest.raises(pd.errors.ParserError, match="EOF inside string"):
        pandas_reads(content, text)
    assert plain(content, text) is None
    assert plain(content, {"i": "int64"}) is None


@pytest.mark.parametrize("word", ["-999", "9.0", "007", "1e3", "inf"])
def test_null_words_that_are_numbers_are_left_to_pandas_which_compares_their_values(word):
    assert read_plain(b"i,t\n1,a\n", ",", {"i": "int64", "t": "string"}, ["t"], ["", word]) is None
    assert read_plain(b"i,t\n1,a\n", ",", {"i": "int64", "t": "string"}, ["t"], ["", "NaN", "k.A."]) is not None


def test_no_declared_column_is_left_to_pandas():
    assert plain(b"i,t\n1,a\n", {}) is None


FIELDS = st.one_of(
    st.sampled_from(["", "NA", "0", "-1", "007", " 7", "7 ", '"7"', '"NA"', '""', "a", "ä", "a\"b", '"a,b"', "1e3"]),
    st.sampled_from(['"a', 'a"', "0x1", '"0X"', "-0", '" -0"']),
    st.text(alphabet='a10-+x ."\tNA', max_size=5),
)  # fmt: skip


@settings(max_examples=examples(400), deadline=None)
@given(
    rows=st.lists(st.tuples(FIELDS, st.integers(-9, 9), st.one_of(FIELDS, st.integers(0, 99))), min_size=1, max_size=5),
    end=st.sampled_from(["", "\n"]),
    separator=st.sampled_from([",", ";"]),
)
def test_whatever_is_read_is_what_pandas_reads(rows, end, separator):
    lines = [separator.join(map(str, row)) for row in [("t", "i", "n"), *rows]]
    content = ("\n".join(lines) + end).encode()
    found = plain(content, separator=separator)
    if found is not None:
        same_bits(found, pandas_reads(content, separator=separator))
