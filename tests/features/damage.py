"""Bytes damaged at random: flipped, cut off, cut out, put in, put twice."""

from hypothesis import strategies as st

TEMPTING = [b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\r", b"\n", b"\r\n", b'"', b",", b";", b"-", b".", b"e",
            b"9" * 30, b"NaN", b"Infinity", b"null", b"{", b"[", b"]", b"}", b"../", b"PAR1", b"\xc3\x28",
            b"\x1a", b" "]  # fmt: skip


@st.composite
def damaged(draw, content):
    """`content` after one to three of these accidents."""
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, max(len(content) - 1, 0)))
        length = draw(st.integers(1, 16))
        how = draw(st.sampled_from(["flip", "cut", "remove", "insert", "overwrite", "repeat"]))
        before, inside, after = content[:place], content[place : place + length], content[place + length :]
        if how == "flip":
            flipped = bytes([content[place] ^ 1 << draw(st.integers(0, 7))]) if content else b""
            content = before + flipped + content[place + 1 :]
        elif how == "cut":
            content = before
        elif how == "remove":
            content = before + after
        elif how == "insert":
            content = before + draw(st.sampled_from(TEMPTING)) + inside + after
        elif how == "overwrite":
            content = before + draw(st.binary(min_size=length, max_size=length)) + after
        else:
            content = before + inside + inside + after
    return content
