"""Tables that take much of the memory are named before they are made; their width is fastai's rule all the same."""

import logging

import pytest

from gigabatch.models.inputs import EntityColumns, ListInputs, ModelInputs
from gigabatch.models.shelf import MODELS, ModelSpec, model_class
from gigabatch.models.tabular.tabular import TabularSettings
from gigabatch.pipeline.stages import stages
from gigabatch.pipeline.training.table_memory import large_tables

GIB = 1 << 30
NAMES = ("person", "shop", "city")


def spec_of(kind: str = "tabular", sizes=(1_000_003, 12, 12), **settings) -> ModelSpec:
    entities = {"user": EntityColumns(0, (0,)), "item": EntityColumns(1, (1,))}
    lists = (ListInputs(sizes[1], shares=1),) if model_class(kind).needs_lists else ()
    return ModelSpec(kind, ModelInputs(sizes, 3, 1, **entities, lists=lists), model_class(kind).Settings(**settings))


FASTAI = {"embedding_width_max": 600}


@pytest.mark.parametrize(
    ("kind", "settings", "free", "words"),
    [
        # 600 numbers by fastai's min(600, round(1.6 n^0.56)), of four bytes each: 2.4 GB
        (
            "tabular",
            {"embedding_width_max": 600},
            16,
            ["1,000,003 ids x 600 numbers takes 2.2 GiB, 14% of the 16 GiB", "embedding_width_max"],
        ),
        ("tabular", FASTAI, 22.3, ["takes 2.2 GiB, 10% of the 22 GiB"]),
        ("tabular", FASTAI, 22.4, None),
        ("tabular", {}, 1.1, ["1,000,003 ids x 32 numbers takes 120 MiB, 11% of the 1.1 GiB"]),
        ("tabular", {}, 16, None),
        ("tabular", {"embedding_widths": (500, 3, 3)}, 16, ["x 500 numbers takes 1.9 GiB", "model.embedding_widths"]),
        ("dlrm", {"embedding_dim": 500}, 16, ["x 500 numbers takes 1.9 GiB", "Lower model.embedding_dim, or raise"]),
        ("lr", {}, 0.03, ["x 1 numbers takes 4 MiB", "12% of the 31 MiB", ". Raise preprocess.min_count."]),
    ],
)
def test_a_table_beyond_a_tenth_of_the_memory_is_named_with_the_setting_to_lower(kind, settings, free, words):
    found = large_tables(spec_of(kind, **settings), NAMES, round(free * GIB))
    assert len(found) == (words is not None)
    for text in words or ():
        assert text in found[0]
    assert all("column 'person': " in text for text in found)


def test_the_largest_comes_first_and_columns_of_one_size_are_told_apart():
    found = large_tables(spec_of(sizes=(1000, 100_000, 100_000), embedding_width_max=600), NAMES, 1 << 20)
    width = min(600, round(1.6 * 100_000**0.56))
    assert [text.partition(": ")[0] for text in found] == ["column 'shop'", "column 'city'", "column 'person'"]
    assert f"100,000 ids x {width} numbers takes {100_000 * width * 4 / 2**20:.0f} MiB"[:25] in found[0]


@pytest.mark.parametrize("kind", [kind for kind in MODELS if model_class(kind).learns_by_steps])
def test_no_model_needs_its_tables_to_tell_their_size(kind):
    """A run asks this of its model, whichever it is. A table of 10^12 rows cannot be had."""
    shapes = spec_of(kind, sizes=(10**12, 10**12, 13)).table_shapes  # sasrec has none of users
    assert 10**12 in {rows for rows, _ in shapes}


def test_a_training_names_its_large_tables_first(tiny, monkeypatch, caplog):
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(stages, "free_memory", lambda device: 4000)
    tiny.train("train.epochs=1")
    (told,) = (message for message in caplog.messages if "of memory that are free" in message)
    # twenty products, null, unseen and padding: min(600, round(1.6 * 23^0.56)) = 9 numbers each
    assert told.startswith("column 'product': its table of 23 ids x 9 numbers takes 0 MiB, 21% of ")
    caplog.clear()
    monkeypatch.setattr(stages, "free_memory", lambda device: GIB)
    tiny.train("train.epochs=1", "seed=3")
    assert "of memory that are free" not in caplog.text


def test_widths_that_are_given_are_those_of_their_columns():
    spec = ModelSpec("tabular", ModelInputs((1_000_000, 1_000_000), 0), TabularSettings(embedding_widths=(600, 1)))
    (text,) = large_tables(spec, ["wide", "narrow"], free_bytes=16 << 30)
    assert "column 'wide': its table of 1,000,000 ids x 600 numbers" in text
