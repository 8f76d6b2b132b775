"""A trivago log that fits in memory, as one chunk: what chunks of any size must agree with."""

from gigabatch.features.engines.frame import engine_of
from gigabatch.features.recipes.trivago.chunk import explode
from gigabatch.features.recipes.trivago.features import PairBuilder, Properties
from gigabatch.features.recipes.trivago.log import Books, code_rows, in_order, survey


def build_pairs(log, metadata, ctr_smoothing=20.0, target_smoothing=400.0):
    """All pairs of a raw log, in any order of rows, the tables that they came from, and the property columns."""
    engine = engine_of(log).NAME
    books = Books.of([survey(log)], engine)
    properties = Properties.of(metadata, 200, engine)
    tables = explode(in_order(code_rows(log, books)), books)
    builder = PairBuilder(books, properties, 5, ctr_smoothing, target_smoothing)
    return builder.build(tables), tables, properties.words.columns
