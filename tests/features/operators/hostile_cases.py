"""What every operator makes of columns as they should not come (`hostile_columns`); `test_hostile_operators` checks it.

An operator added tomorrow states its outcomes here: a case with a role for each of its inputs, which says what must be
refused, and whatever differs from that.
"""

import math
from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import pandas as pd
import xxhash

from gigabatch.features.operators import operator_class
from gigabatch.features.operators.history.asof import Count, Last, Mean

REFUSED, SAME, RELABELLED, AS_NULL, UNTOUCHED = "refused", "same", "relabelled", "as null", "untouched"
# SAME: as of the plain column. RELABELLED: each value counts as itself, whatever its type. AS_NULL: as of a column of
# nulls. UNTOUCHED: the values come out as they went in, in the rows that stay. A function: (frame, column) -> values.


def weekday(frame, column):
    """Of moments, in UTC."""
    return pd.to_datetime(frame[column], utc=True).dt.day_of_week.tolist()


DATES = {"moments_ns", "moments_s_in_zone", "moments_of_mixed_zones", "durations", "moments_for_text"}
NO_VALUES = {*DATES, "decimals", "decimals_with_fraction", "complex_numbers", "lists_of_numbers", "mixed_objects",
             "lone_surrogate", "bytes_of_bad_utf8", "a_list_among_text", "a_number_among_text"}  # fmt: skip
OBJECTS = {"whole_as_objects", "objects_with_none", "whole_category_reversed", "number_objects_nan_and_none"}
NULLS = {"masked_with_null", "arrow_with_null", "objects_with_none"}
INFINITE = {"infinity", "minus_infinity"}
BEYOND = {"beyond_int64", "floats_beyond_2_53"}
REFUSED_BY_ROLE = {
    # What may be a category: text, whole numbers, floats, flags.
    "key": {*NO_VALUES, "beyond_int64"},
    # A quantity. Text is not read as numbers, which is Cast's business.
    "number": {*NO_VALUES, *OBJECTS, *INFINITE, "whole_as_text", "number_text"},
    "finite": {*NO_VALUES, *OBJECTS, *INFINITE, *NULLS, "whole_as_text", "number_text"},
    # A time, an order or a count.
    "whole": {*NO_VALUES, *OBJECTS, *BEYOND, "whole_as_text"},
    "time": {*NO_VALUES, *OBJECTS, *BEYOND, *NULLS, "whole_as_text"},
    "text": {*NO_VALUES, "numbers_for_text"},
    "cast": {*NO_VALUES},
    "any": set(),
}
LABELS = ("whole_as_text", "floats_beyond_2_53", "numbers_for_text", "number_text")
KEPT = dict.fromkeys(INFINITE, SAME)  # an infinity stays one, for FillMissing to refuse by name
# A key that is looked up among others: another kind of value is refused, another value is not found.
LOOKED_UP = {**dict.fromkeys(LABELS, REFUSED), ("user", "floats_beyond_2_53"): AS_NULL}


@dataclass(frozen=True)
class Case:
    """roles: of every input. nothing: by input, what comes out where it holds no value at all: REFUSED, or by output
    one value for all rows or a function. stated: (input, form) or form -> outcome. later_nothing, later: the same
    where the fit saw the plain table."""

    operator: str
    arguments: dict
    roles: dict
    nothing: dict
    stated: dict = field(default_factory=dict)
    later_nothing: dict = field(default_factory=dict)
    later: dict = field(default_factory=dict)

    def __str__(self):
        return f"{self.operator}-{'-'.join(self.roles)}"

    def make(self):
        return operator_class(self.operator)(**self.arguments)

    def outcome(self, column, form, later):
        for stated in (self.later, self.stated) if later else (self.stated,):
            for name in ((column, form), form):
                if name in stated:
                    return stated[name]
        role = self.roles[column]
        if form in REFUSED_BY_ROLE[role]:
            return REFUSED
        if role == "key" and form in LABELS:
            return REFUSED if later else RELABELLED  # the fit saw values of another kind
        return UNTOUCHED if role == "any" else SAME


def table(rows=40):
    rng = np.random.default_rng(3)

    def some(values):
        return pd.Series(values).mask(pd.Series(rng.random(rows) < 0.15))

    at = rng.permutation(rows) * 3
    return pd.DataFrame({
        "row": np.arange(rows), "at": at, "done": at + rng.integers(1, 9, rows), "user": rng.integers(0, 6, rows),
        "clicks": rng.integers(0, 2, rows), "price": some(rng.gamma(2, 1, rows)), "full": rng.gamma(2, 1, rows),
        "city": some(rng.choice(["Oslo", "Bonn", "Lima"], rows)).astype("str"),
        "words": some(rng.choice(["a|b", "b", "c|a"], rows)).astype("str"),
    })  # fmt: skip


def ids(*columns, first=3, of=None):
    """Categorify's ids in plain Python: null 1, then by descending count, ties by value, from `first` on.

    columns: whose values are counted together. of: whose ids these are; both are the input by default.
    """

    def expected(frame, column):
        column = of or column
        counts = Counter(value for name in columns or (column,) for value in frame[name] if not pd.isna(value))
        ranked = sorted(counts, key=lambda value: (-counts[value], value))
        return [1 if pd.isna(value) else first + ranked.index(value) for value in frame[column]]

    return expected


def hashed_text(frame, column):
    return [1 + xxhash.xxh64_intdigest(value.encode()) % 10 for value in frame[column]]


def signs_of_odd_hashes(frame, column):
    """TextHash's second of two columns, of texts of one word."""
    words = [None if pd.isna(value) else str(value).lower() for value in frame[column]]
    hashes = [0 if word is None else xxhash.xxh64_intdigest(word.encode()) for word in words]
    return [0 if number % 2 == 0 else -1 if number >= 2**63 else 1 for number in hashes]


def hashed_words(frame, column):
    """TextTokens in nine buckets, of texts of one word."""
    words = [() if pd.isna(value) else (str(value).lower(),) for value in frame[column]]
    return [tuple(xxhash.xxh64_intdigest(word.encode()) % 9 for word in row) for row in words]


def combination_bucket(values, buckets):
    """HashedCross of one row in plain Python; see its docstring."""
    state = 0
    for value in values:
        part = 0xD6E8FEB86659FD93
        if not pd.isna(value):
            data = value.encode() if isinstance(value, str) else int(value).to_bytes(8, "little", signed=True)
            part = xxhash.xxh64_intdigest(data)
        state = ((state ^ part) + 0x9E3779B97F4A7C15) % 2**64
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ state >> 27) * 0x94D049BB133111EB % 2**64
        state ^= state >> 31
    return 0 if all(pd.isna(value) for value in values) else 1 + state % buckets


def crossed(frame, _):
    return [combination_bucket(row, 10) for row in zip(frame["city"], frame["user"], strict=True)]


def means_before(frame, column):
    """Rolling's mean over 50 units before each row, in exact fractions."""

    def before(row):
        same = (frame["user"] == frame["user"][row]) & (frame["city"] == frame["city"][row])
        ago = frame["at"][row] - frame["at"]
        return [Fraction(value) for value in frame[column][same & (ago > 0) & (ago <= 50)]]

    return [float(np.float32(sum(found) / len(found))) if (found := before(row)) else None for row in frame.index]


def sequences(value):
    """GroupbyToSequence of three values by user in plain Python."""

    def expected(frame, _):
        rows = sorted(frame.index, key=lambda row: frame["row"][row])
        found = {}
        for row in rows:
            entry = frame[value][row]
            if not pd.isna(frame["user"][row]):
                found.setdefault(frame["user"][row], []).append("" if pd.isna(entry) else str(entry))
        return ["|".join(found[user][-3:]) for user in sorted(found)]

    return expected


def of_users(value, function):
    """What GroupbyToSequence aggregates by user, whose ids are sorted as what they are, in plain Python."""

    def expected(frame, _):
        found = {user: [] for user in frame["user"] if not pd.isna(user)}
        for user, one in zip(frame["user"], frame[value], strict=True):
            if not (pd.isna(user) or pd.isna(one)):
                found[user].append(one)
        return [function(found[user]) if found[user] else None for user in sorted(found)]

    return {("user", form): expected for form in ("whole_as_text", "floats_beyond_2_53")}


def earlier_texts(frame, column):
    """History of three values by city in plain Python, of text."""
    rows = sorted(frame.index, key=lambda row: (frame["at"][row], frame["row"][row]))
    return [
        tuple(str(frame[column][other]) for other in rows if frame["city"][other] == frame["city"][row]
              and frame["at"][other] < frame["at"][row])[-3:] for row in frame.index
    ]  # fmt: skip


def text(frame, column):
    return [None if pd.isna(value) else str(value) for value in frame[column]]


def lowered(frame, column):
    """CleanText of that case in plain Python."""
    return [None if value in (None, "bonn") else value for value in (
        None if value is None else value.lower() for value in text(frame, column))]  # fmt: skip


def no_rows(frame, column):
    return []


TABLE = table()
SIZES = pd.DataFrame({"city": ["Oslo", "Bonn"], "user": [1, 2], "size": [1.0, 2.0]})
MEDIAN, MEAN = (float(np.float32(value)) for value in (TABLE["price"].median(), math.fsum(TABLE["price"].dropna())
                / TABLE["price"].count()))  # fmt: skip
KEYS = {"user": "key", "city": "key"}
BY = {"by": ["user", "city"]}
LISTS = {"by": ["user"], "order": "row", "columns": ["row"], "max_length": 3}
O = {"output": "o"}  # noqa: E741
NOTHING, ZERO, NULL = {}, {"o": 0}, {"o": None}
COUNTS = {"user": ZERO, "city": ZERO}
NULLS_OF_KEYS = {"user": NULL, "city": NULL}
SUMS = ["std", "count", "min", "sum"]
GROUP_NULL = {f"price_{name}_by_city_user": None for name in SUMS}
RATE = float(np.float32(TABLE["clicks"].mean()))
ENCODED = "clicks_encoded_by_city_user"
CASES = [
    Case("asof", {**BY, "at": "at", "known_at": "done", "order": "row", "aggregations": [
        Count("n"), Mean("clicks", "m", smoothing=3.0), Last({"price": "p"})]},
        {**KEYS, "at": "time", "done": "whole", "row": "time", "clicks": "number", "price": "number"},
        {"user": {"n": 0, "p": None}, "city": {"n": 0, "p": None}, "at": REFUSED, "row": REFUSED,
         "done": {"n": 0, "m": None, "p": None}, "clicks": {"m": None}, "price": {"p": None}},
        {**KEPT, ("clicks", "beyond_int64"): REFUSED}),
    Case("bucketize", {"column": "price", "edges": [1, 2.5, 1e9], **O}, {"price": "number"}, {"price": ZERO}, KEPT),
    Case("bucketize", {"column": "at", "edges": [1, 2.5, 1e9], **O}, {"at": "number"}, {"at": ZERO}),
    Case("cast", {"columns": ["at"], "dtype": "int64", "nullable": True}, {"at": "cast"}, {"at": {"at": None}},
         dict.fromkeys(BEYOND, REFUSED)),
    Case("cast", {"columns": ["clicks"], "dtype": "bool", "nullable": True}, {"clicks": "cast"},
         {"clicks": {"clicks": None}}, dict.fromkeys(BEYOND, REFUSED)),
    Case("cast", {"columns": ["price"], "dtype": "float32"}, {"price": "cast"}, {"price": {"price": None}}),
    Case("cast", {"columns": ["city"], "dtype": "string"}, {"city": "cast"}, {"city": {"city": None}},
         {"a_number_among_text": text, "numbers_for_text": text}),
    Case("categorify", {"column": "city", **O}, {"city": "key"}, {"city": {"o": 1}}, {"numbers_for_text": ids()},
         {"city": {"o": 1}}, {"numbers_for_text": REFUSED}),
    Case("categorify", {"column": "user", "oov_buckets": 3, **O}, {"user": "key"}, {"user": {"o": 1}},
         dict.fromkeys(LABELS, ids(first=5)), {"user": {"o": 1}}, dict.fromkeys(LABELS, REFUSED)),
    Case("categorify", {"column": "price", **O}, {"price": "key"}, {"price": {"o": 1}}, {"number_text": ids()},
         {"price": {"o": 1}}, {"number_text": REFUSED, "flags_with_null": REFUSED}),
    Case("categorify", {"shared": ["user", "at"]}, {"user": "key", "at": "key"}, {"user": {"user": 1}, "at": {"at": 1}},
         {"whole_as_text": REFUSED, "floats_beyond_2_53": ids("user", "at")},
         {"user": {"user": 1}, "at": {"at": 1}}, {"floats_beyond_2_53": REFUSED}),
    Case("categorify", {"combined": ["user", "city"], **O}, KEYS,
         {"user": {"o": ids(of="city")}, "city": {"o": ids(of="user")}},
         {"whole_as_text": SAME}, {"user": NOTHING, "city": NOTHING}, {"whole_as_text": REFUSED}),
    Case("categorify", {"column": "words", "separator": "|", **O}, {"words": "text"}, {"words": {"o": ()}}, {},
         {"words": {"o": ()}}),
    Case("clean_text", {"column": "city", "case": "lower", "replace": {"bonn": None}, **O}, {"city": "cast"},
         {"city": NULL}, {"a_number_among_text": lowered, "numbers_for_text": lowered}),
    Case("clip", {"column": "price", "low": 0.0, "high": 0.1}, {"price": "number"}, {"price": {"price": None}},
         # It keeps the type, so the type must be able to hold the bounds.
         {**KEPT, "all_masked": REFUSED, "flags_with_null": REFUSED}),
    Case("clip", {"column": "at", "low": 5, "high": 9}, {"at": "number"}, {"at": {"at": None}}),
    Case("count_encoding", {"events": TABLE, **BY, **O, "at": "at"}, {**KEYS, "at": "time"},
         {**COUNTS, "at": REFUSED}, LOOKED_UP),
    Case("date_parts", {"column": "at", "parts": ["hour", "minute", "weekday"], "prefix": "p"}, {"at": "whole"},
         {"at": dict.fromkeys(("p_hour", "p_minute", "p_weekday"))},
         {("at", form): weekday for form in ("moments_ns", "moments_s_in_zone", "moments_of_mixed_zones")}),
    Case("difference", {"left": "price", "right": "at", **O}, {"price": "number", "at": "number"},
         {"price": NULL, "at": NULL}, KEPT),
    Case("difference_lag", {**BY, "order": "row", "column": "price", **O}, {**KEYS, "row": "time", "price": "number"},
         {**NULLS_OF_KEYS, "row": REFUSED, "price": NULL}, {**KEPT, ("row", "whole_as_float"): REFUSED}),
    Case("lag", {**BY, "time": "row", "column": "price", **O}, {**KEYS, "row": "time", "price": "any"},
         {**NULLS_OF_KEYS, "row": REFUSED, "price": NULL}, {**KEPT, ("row", "whole_as_float"): REFUSED}),
    Case("lag", {**BY, "time": "at", "column": "words", "span": 2, "order": "row", **O},
         {**KEYS, "at": "time", "words": "any", "row": "time"},
         {**NULLS_OF_KEYS, "at": REFUSED, "row": REFUSED, "words": NULL},
         {**KEPT, ("row", "whole_as_float"): REFUSED, ("at", "whole_as_float"): REFUSED}),
    Case("drop_nulls", {"columns": ["price", "city", "user"]}, dict.fromkeys(("price", "city", "user"), "any"),
         {"price": NOTHING, "city": NOTHING, "user": NOTHING}),
    Case("explode_lists", {"lists": {"words": ("w", "string")}, "position": "pos", "keep": ["row"]},
         {"words": "text", "row": "any"}, {"words": {"w": no_rows}, "row": NOTHING}),
    Case("expression", {**O, "expression": "price / maximum(at, 1)"}, {"price": "number", "at": "number"},
         {"price": NULL, "at": NULL}, KEPT),
    *(Case("fill_missing", {"column": "price", **arguments}, {"price": "number"}, {"price": nothing}, {},
           {"price": {"price": later}}) for arguments, nothing, later in (
        ({}, REFUSED, MEDIAN), ({"strategy": "mean"}, REFUSED, MEAN),
        ({"strategy": "constant", "value": 3.0}, {"price": 3}, 3))),
    Case("fill_missing", {"column": "at", "strategy": "mode"}, {"at": "number"}, {"at": REFUSED}, {},
         {"at": {"at": 0}}),
    Case("filter", {"column": "price", "op": ">", "value": 0.5}, {"price": "number"}, {"price": {"price": no_rows}},
         {**KEPT, "flags_with_null": REFUSED}),
    Case("filter", {"column": "user", "op": "in", "value": [1, 2]}, {"user": "number"}, {"user": {"user": no_rows}},
         {"whole_category_reversed": SAME}),
    Case("filter", {"column": "city", "op": "!=", "value": "Oslo"}, {"city": "text"}, {"city": {"city": no_rows}}),
    Case("folded_target_encoding", {"by": ["city", "user"], "targets": ["clicks"], "fold_key": "row"},
         {**KEYS, "clicks": "number", "row": "key"},
         {"user": {ENCODED: RATE}, "city": {ENCODED: RATE}, "clicks": {ENCODED: None}, "row": REFUSED},
         # New rows are encoded by all folds together, so the fold key's type does not show here.
         {("row", "whole_as_text"): SAME, ("row", "floats_beyond_2_53"): REFUSED,
          **{("row", form): REFUSED for form in NULLS}},
         {"user": {ENCODED: RATE}, "city": {ENCODED: RATE}}, {"floats_beyond_2_53": AS_NULL}),
    Case("gauss_rank", {"column": "full"}, {"full": "finite"}, {"full": REFUSED}, {}, {"full": REFUSED}),
    Case("gauss_rank", {"column": "at"}, {"at": "finite"}, {"at": REFUSED}, {}, {"at": REFUSED}),
    Case("groupby_to_sequence", {"by": ["user"], "order": "row", "columns": ["at"], "max_length": 3},
         {"user": "key", "row": "time", "at": "key"},
         {"user": NOTHING, "row": REFUSED, "at": {"at": sequences("at")}},
         {("at", "whole_as_float"): REFUSED, ("at", "floats_beyond_2_53"): REFUSED, ("row", "whole_as_float"): REFUSED,
          ("at", "whole_as_text"): SAME, **{("at", form): sequences("at") for form in NULLS},
          **{("user", form): sequences("at") for form in ("whole_as_text", "floats_beyond_2_53")}}),
    Case("groupby_to_sequence", {**LISTS, "aggregations": {
        "rows": ["price", "count"], "first": ["price", "first"], "high": ["price", "max"], "low": ["price", "min"]}},
         {"user": "key", "row": "time", "price": "number"},
         {"user": NOTHING, "row": REFUSED, "price": {"low": None, "high": None, "first": None}},
         {**KEPT, ("row", "whole_as_float"): REFUSED, **of_users("price", min)}),
    Case("groupby_to_sequence", {**LISTS, "aggregations": {"m": ["price", "mean"], "o": ["price", "sum"]}},
         {"user": "key", "row": "time", "price": "number"},
         {"user": NOTHING, "row": REFUSED, "price": {"o": None, "m": None}},
         {**dict.fromkeys(INFINITE, REFUSED), ("row", "whole_as_float"): REFUSED, **of_users("price", math.fsum)}),
    Case("groupby_to_sequence", {**LISTS, "aggregations": {
        "o": ["clicks", "sum"], "m": ["clicks", "mean"], "high": ["clicks", "max"]}},
         {"user": "key", "row": "time", "clicks": "number"},
         {"user": NOTHING, "row": REFUSED, "clicks": {"o": None, "m": None, "high": None}},
         {("row", "whole_as_float"): REFUSED, ("clicks", "beyond_int64"): REFUSED, **of_users("clicks", max)}),
    Case("groupby_to_sequence", {**LISTS, "aggregations": {"o": ["city", "nunique"]}},
         {"user": "key", "row": "time", "city": "key"}, {"user": NOTHING, "row": REFUSED, "city": {"o": 0}},
         {("row", "whole_as_float"): REFUSED, **of_users("city", lambda values: len(set(values)))}),
    Case("hash_bucket", {"column": "city", "num_buckets": 10, **O}, {"city": "key"}, {"city": ZERO},
         {"numbers_for_text": lambda frame, _: [
             1 + xxhash.xxh64_intdigest(int(value).to_bytes(8, "little")) % 10 for value in frame["city"]]}),
    Case("hash_bucket", {"column": "user", "num_buckets": 10, **O}, {"user": "key"}, {"user": ZERO},
         {"whole_as_text": hashed_text, "floats_beyond_2_53": REFUSED}),
    Case("hashed_cross", {"columns": ["city", "user"], "num_buckets": 10, **O}, KEYS,
         {"user": {"o": crossed}, "city": {"o": crossed}},
         {"whole_as_text": crossed, "numbers_for_text": crossed, "floats_beyond_2_53": REFUSED}),
    Case("history", {**BY, "time": "at", "order": "row", "column": "city", "length": 3, "where": "clicks",
                     "half_life": 9, **O},
         {**KEYS, "at": "time", "row": "time", "clicks": "number"},
         {**{key: {"o": (), "o_weights": ()} for key in ("user", "city", "clicks")}, "at": REFUSED, "row": REFUSED},
         {("clicks", form): REFUSED for form in BEYOND}),
    Case("history", {"by": ["city"], "time": "at", "order": "row", "column": "user", "length": 3, **O},
         {"city": "key", "at": "time", "row": "time", "user": "key"},
         {**{key: {"o": ()} for key in ("user", "city")}, "at": REFUSED, "row": REFUSED},
         {("user", "whole_as_text"): earlier_texts, ("user", "floats_beyond_2_53"): REFUSED}),
    Case("join_external", {"table": SIZES, "on": ["city", "user"], "columns": {"size": "o"}}, KEYS, NULLS_OF_KEYS,
         LOOKED_UP),
    Case("join_groupby", {"by": ["city", "user"], "values": ["price"], "statistics": SUMS}, {**KEYS, "price": "number"},
         {"user": GROUP_NULL, "city": GROUP_NULL, "price": GROUP_NULL}, {},
         {"user": GROUP_NULL, "city": GROUP_NULL}, {"floats_beyond_2_53": AS_NULL}),
    Case("lambda_function", {"name": "hostile_copy"}, {"full": "any"}, {"full": NOTHING}),
    Case("last_before", {"events": TABLE, **BY, "columns": {"price": "o"}, "at": "at", "order": "row"},
         {**KEYS, "at": "time"}, {**NULLS_OF_KEYS, "at": REFUSED}, LOOKED_UP),
    Case("list_length", {"column": "words", **O}, {"words": "text"}, {"words": ZERO}),
    Case("list_slice", {"column": "words", "start": 0, "stop": 1, **O}, {"words": "text"}, {"words": NULL}),
    Case("log", {"column": "price", **O}, {"price": "number"}, {"price": NULL},
         {"infinity": lambda frame, _: [None if x != x else float(np.float32(math.log1p(x))) for x in frame["price"]]}),
    Case("log", {"column": "at", **O}, {"at": "number"}, {"at": NULL}),
    *(Case(name, {"column": column}, {column: "finite"}, {column: REFUSED}, {}, {column: REFUSED})
      for name in ("min_max", "normalize") for column in ("full", "at")),
    *(Case("quantile_buckets", {"column": column, "num_buckets": 5, "method": method}, {column: "number"},
           {column: REFUSED}, {}, {column: {column: 0}}, KEPT)
      for column, method in (("price", "exact"), ("price", "sketch"), ("at", "exact"))),
    Case("rank_within_group", {**BY, "value": "price", **O}, {**KEYS, "price": "number"},
         {**NULLS_OF_KEYS, "price": NULL}, KEPT),
    Case("rename", {"mapping": {"price": "cost"}}, {"price": "any"}, {"price": NOTHING}),
    Case("rolling", {**BY, "time": "at", "column": "clicks", "window": 50, "statistic": "mean", **O},
         {**KEYS, "at": "time", "clicks": "number"}, {**NULLS_OF_KEYS, "at": REFUSED, "clicks": NULL},
         {("clicks", "beyond_int64"): REFUSED, ("clicks", "floats_beyond_2_53"): means_before}),
    Case("rolling", {**BY, "time": "at", "column": "price", "window": 50, "statistic": "max", **O},
         {**KEYS, "at": "time", "price": "number"}, {**NULLS_OF_KEYS, "at": REFUSED, "price": NULL}, KEPT),
    Case("target_encoding", {**BY, "hits": "clicks", **O, "at": "at", "fold": "row"},
         {**KEYS, "clicks": "whole", "at": "time", "row": "key"},
         {"user": NOTHING, "city": NOTHING, "clicks": NULL, "at": REFUSED, "row": REFUSED},
         {("row", form): REFUSED for form in NULLS}),
    Case("parse_number", {"column": "price", **O}, {"price": "cast"}, {"price": NULL},
         {**KEPT, "mixed_objects": lambda frame, column: [None if pd.isna(v) else float(v) for v in frame[column]]}),
    Case("parse_duration", {"column": "price", **O}, {"price": "cast"}, {"price": NULL},
         {**KEPT, "number_text": REFUSED, "mixed_objects": REFUSED, "number_objects_nan_and_none": REFUSED}),
    Case("text_hash", {"column": "city", "prefix": "h", "num_buckets": 2}, {"city": "cast"},
         {"city": {"h_0": 0, "h_1": 0}},
         dict.fromkeys(("a_number_among_text", "numbers_for_text"), signs_of_odd_hashes)),
    Case("text_tokens", {"column": "city", "num_buckets": 9, **O}, {"city": "cast"}, {"city": {"o": ()}},
         dict.fromkeys(("a_number_among_text", "numbers_for_text"), hashed_words)),
    Case("text_flags", {"column": "words", "prefix": "w_"}, {"words": "text"}, {"words": NOTHING}, {},
         {"words": {"w_a": 0, "w_b": 0, "w_c": 0}}),
    Case("waiting", {**BY, "planned_at": "at", "happened_at": "done", "output": "w"},
         {**KEYS, "at": "time", "done": "whole"},
         {"user": {"w": 0, "w_min_mean": 0}, "city": {"w": 0, "w_min_mean": 0}, "at": REFUSED, "done": NOTHING}),
]  # fmt: skip
