"""The stage `embed`: stored vectors are the towers' own, an update equals a full run, nothing is half."""

import json
import os
import shutil
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from test_newest_rows import newest_by_loop, plain

from gigabatch.features.errors import DataError
from gigabatch.features.schema import Schema
from gigabatch.models.model import SCORE_ATOL, SCORE_RTOL, Model
from gigabatch.pipeline.bundle import Bundle, load_bundle, model_outputs
from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.embedding import embed as stage
from gigabatch.pipeline.embedding import embed_write
from gigabatch.pipeline.embedding.embed import embed, update_embeddings
from gigabatch.pipeline.embedding.embed_write import Tower
from gigabatch.pipeline.embedding.embeddings import LATEST, STAGE, EmbeddingsError, StoredEmbeddings
from gigabatch.pipeline.embedding.entities import kept_columns
from gigabatch.pipeline.embedding.settings import EmbedSettings
from gigabatch.pipeline.store.artifacts import MANIFEST
from gigabatch.pipeline.store.files import ArtifactError
from tests.pipeline.shop_rows import FIRST_ITEM, SHOP, sales, trained_shop, without_null_times

NULL = 1  # the id of null


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    return trained_shop(tmp_path_factory.mktemp("shop"))


@pytest.fixture
def run(shop, tmp_path, monkeypatch):
    """A copy of the run's folder, without embeddings."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    return shutil.copytree(shop.run, tmp_path / "run", ignore=shutil.ignore_patterns(STAGE))


def whole_table(shop) -> pd.DataFrame:
    features = shop.pipeline().features()
    return pd.concat([features.frame(split) for split in features.rows], ignore_index=True)


def opened(run, shop) -> StoredEmbeddings:
    return StoredEmbeddings.load(run / STAGE, shop.bundle)


def require_equal(found: StoredEmbeddings, expected: StoredEmbeddings):
    """Keys, rows and words bit for bit, file by file; vectors within the tolerance."""
    for entity in ("user", "item"):
        for name in ("ids.parquet", "rows.parquet", "words.npy"):
            one, other = ((stored.folder / f"{entity}s" / name).read_bytes() for stored in (found, expected))
            assert one == other, (entity, name)
        one, other = (getattr(stored, entity).vectors for stored in (found, expected))
        assert_vectors(one, other)


def assert_vectors(found: torch.Tensor, expected: torch.Tensor):
    """Equal within the tolerance; in half precision two roundings of what is as near as that may be one unit apart."""
    rtol = SCORE_RTOL + (2**-10 if found.dtype == torch.float16 else 0)
    torch.testing.assert_close(found, expected, rtol=rtol, atol=SCORE_ATOL)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_stored_rows_and_vectors_are_those_of_a_loop_over_the_table_and_of_the_towers(shop, run, dtype):
    """Items' vectors come from whole real rows, in which the other columns are filled: these must not count."""
    features = shop.pipeline().features()
    artifact = embed(run, shop.bundle, features, EmbedSettings(dtype))
    table, found = whole_table(shop), opened(run, shop)
    assert (run / STAGE / LATEST).resolve() == artifact.path == found.folder
    for name in ("user", "item"):
        entity, stored = SHOP.entity(name), getattr(found, name)
        columns = kept_columns(SHOP, entity)
        assert plain(stored.rows(), columns) == newest_by_loop(table, entity, columns, timed=True)
        assert stored.keys.tolist() == stored.rows()[entity.key].tolist()
        order = table.assign(place=range(len(table))).dropna(subset=[entity.key]).sort_values(["at", "place"])
        newest = table.iloc[order.groupby(entity.key)["place"].last()[stored.keys].tolist()]
        encoded = shop.bundle.preprocessor.transform(newest, targets=False)
        ids = torch.from_numpy(encoded[SHOP.names("categorical")].to_numpy().copy())
        floats = torch.from_numpy(encoded[shop.bundle.preprocessor.float_names()].to_numpy().copy())
        of = getattr(shop.bundle.model.inputs, name)
        assert torch.equal(stored.ids, ids[:, list(of.ids)])
        assert torch.equal(stored.floats, floats[:, list(of.floats)])
        if name == "user":  # the hour is of the request, and enters the user's tower
            ids[:, SHOP.names("categorical").index("hour")] = NULL
        expected = torch.cat(list(model_outputs(Tower(shop.bundle.model, name), ids, floats)))
        assert stored.vectors.dtype == getattr(torch, dtype)
        assert_vectors(stored.vectors, expected.to(stored.vectors.dtype))


def test_the_score_of_stored_vectors_is_the_bundles_prediction(shop, run):
    """Of rows whose context is null; what the two towers saw is then all that there is."""
    embed(run, shop.bundle, shop.pipeline().features(), EmbedSettings())
    found = opened(run, shop)
    users, items = found.user.rows(), found.item.rows()
    pairs = users.drop(columns="at").head(20).join(items.drop(columns="at").head(20)).assign(hour=None)
    pairs["hour"] = pairs["hour"].astype("Int32")
    expected = shop.bundle.predict(pairs)["bought"].to_numpy()
    with torch.inference_mode():
        logits = shop.bundle.model.eval().score(found.user.vectors[:20], found.item.vectors[:20])
    assert torch.sigmoid(logits)[:, 0].numpy() == pytest.approx(expected, abs=1e-6)
    assert len(set(expected.tolist())) > 10


@pytest.mark.parametrize(("dtype", "seed"), [("float32", 10), ("float16", 11)])
def test_an_update_equals_a_full_run_over_all_rows(shop, run, tmp_path, dtype, seed):
    """New items and users, changed ones, rows that are older than what is known, and rows that change nothing."""
    new = without_null_times(sales(seed, 60, num_items=75, num_users=50))
    known = whole_table(shop).iloc[::40]
    more = pd.concat([new, known], ignore_index=True)
    more.to_parquet(tmp_path / "more.parquet")
    settings = EmbedSettings(dtype)
    embed(run, shop.bundle, shop.pipeline().features(), settings)
    before = opened(run, shop)
    update = update_embeddings(run, shop.bundle, shop.pipeline(), [str(tmp_path / "more.parquet")], settings)
    again = shutil.copytree(shop.run, tmp_path / "again", ignore=shutil.ignore_patterns(STAGE))
    full = embed(again, shop.bundle, shop.pipeline(f"features.more={tmp_path / 'more.parquet'}").features(), settings)
    require_equal(opened(run, shop), opened(again, shop))
    for name in ("user", "item"):
        entry = update.manifest["entities"][name]
        stored = getattr(opened(run, shop), name)
        old = getattr(before, name)
        num_new = len(stored) - len(old)
        changed = int((stored.words[: len(old)] != old.words).any(1).sum())
        assert entry["computed"] == num_new + changed
        kept = (stored.words[: len(old)] == old.words).all(1)
        assert torch.equal(stored.vectors[: len(old)][kept], old.vectors[kept])
        assert 0 < num_new < entry["computed"] < entry["rows"] == full.manifest["entities"][name]["computed"]
        assert stored.keys[: len(old)].tolist() == old.keys.tolist()


def test_a_full_embed_says_what_of_updates_is_no_longer_there(shop, run, tmp_path, caplog):
    features, settings = shop.pipeline().features(), EmbedSettings()
    embed(run, shop.bundle, features, settings)
    first, last = opened(run, shop), whole_table(shop)["at"].max()
    new = without_null_times(sales(8, 3)).assign(user=["new", "new", first.user.keys[0]], at=last + 1)
    new["item"] = [FIRST_ITEM + 997, FIRST_ITEM + 998, first.item.keys[0]]
    new.to_parquet(tmp_path / "new.parquet")
    update_embeddings(run, shop.bundle, shop.pipeline(), [str(tmp_path / "new.parquet")], settings)
    assert "no longer" not in caplog.text
    embed(run, shop.bundle, features, settings)
    assert (
        "1 user(s) and 2 item(s) of the version before are no longer stored, and 1 user(s) and 1 item(s) are as of an "
        "earlier row"
    ) in caplog.text
    caplog.clear()
    embed(run, shop.bundle, features, EmbedSettings("float16"))
    assert "no longer" not in caplog.text


def test_rows_that_change_while_they_are_read_make_no_embeddings(shop, run, tmp_path, monkeypatch):
    features = shop.pipeline().features()
    path = tmp_path / "new.parquet"
    features.frame("test").to_parquet(path)
    embed(run, shop.bundle, features, EmbedSettings())
    before = (run / STAGE / LATEST).resolve()
    real = stage.NewestRows.add

    def read_and_changed(self, frame):
        real(self, frame)
        features.frame("test").head(3).to_parquet(path)

    monkeypatch.setattr(stage.NewestRows, "add", read_and_changed)
    with pytest.raises(ArtifactError, match=r"new\.parquet changed while it was read"):
        update_embeddings(run, shop.bundle, shop.pipeline(), [str(path)], EmbedSettings())
    assert (run / STAGE / LATEST).resolve() == before


def test_an_update_computes_nothing_where_nothing_changed_and_all_where_old_vectors_are_of_no_use(
    shop, run, tmp_path, monkeypatch
):
    features = shop.pipeline().features()
    whole_table(shop).to_parquet(tmp_path / "same.parquet")
    files = [str(tmp_path / "same.parquet")]
    embed(run, shop.bundle, features, EmbedSettings())
    expected = opened(run, shop)
    monkeypatch.setattr(Tower, "forward", None)  # nothing may be computed
    found = update_embeddings(run, shop.bundle, shop.pipeline(), files, EmbedSettings())
    monkeypatch.undo()
    assert [entry["computed"] for entry in found.manifest["entities"].values()] == [0, 0]
    require_equal(opened(run, shop), expected)
    other = update_embeddings(run, shop.bundle, shop.pipeline(), files, EmbedSettings("float16"))
    assert all(entry["computed"] == entry["rows"] for entry in other.manifest["entities"].values())
    monkeypatch.setattr(stage, "source_hash", lambda modules: "other code")
    other = update_embeddings(run, shop.bundle, shop.pipeline(), files, EmbedSettings("float16"))
    assert all(entry["computed"] == entry["rows"] for entry in other.manifest["entities"].values())


def test_a_file_of_items_alone_brings_items_and_one_of_neither_is_refused(shop, run, tmp_path):
    embed(run, shop.bundle, shop.pipeline().features(), EmbedSettings())
    before = opened(run, shop)
    news = sales(3, 5)[["item", "price", "stock", "colour", "sold"]].assign(item=range(5), at=0)
    news.to_parquet(tmp_path / "items.parquet")
    update_embeddings(run, shop.bundle, shop.pipeline(), [str(tmp_path / "items.parquet")], EmbedSettings())
    after = opened(run, shop)
    assert len(after.item) == len(before.item) + 5
    assert torch.equal(after.user.vectors, before.user.vectors)
    news[["price"]].to_parquet(tmp_path / "prices.parquet")
    with pytest.raises(DataError, match=r"prices\.parquet: column\(s\) 'user', 'item' not found"):
        update_embeddings(run, shop.bundle, shop.pipeline(), [str(tmp_path / "prices.parquet")], EmbedSettings())
    with pytest.raises(DataError, match="is not a Parquet file"):
        update_embeddings(run, shop.bundle, shop.pipeline(), ["a.csv"], EmbedSettings())
    news.drop(columns="colour").to_parquet(tmp_path / "pale.parquet")
    with pytest.raises(DataError, match=r"rows of the item: column\(s\) 'colour' not found"):
        update_embeddings(run, shop.bundle, shop.pipeline(), [str(tmp_path / "pale.parquet")], EmbedSettings())


@pytest.mark.parametrize("cuts", [[0, 40], [0, 15, 40]])
def test_rows_without_a_key_are_counted_and_told(shop, run, tmp_path, caplog, cuts):
    """They vanished without a word."""
    embed(run, shop.bundle, shop.pipeline().features(), EmbedSettings())
    frame = sales(5, 40).assign(user="u1", item=FIRST_ITEM)
    frame["item"] = frame["item"].astype("Int64").mask(frame.index < 7)
    frame["user"] = frame["user"].mask(frame.index >= 38)
    files = [str(tmp_path / f"{start}.parquet") for start in cuts[:-1]]
    for path, start, end in zip(files, cuts, cuts[1:], strict=False):
        frame.iloc[start:end].to_parquet(path)
    caplog.clear()
    update_embeddings(run, shop.bundle, shop.pipeline(), files, EmbedSettings())
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    left = "so they belong to none and are left out."
    assert told == [
        f"embed: 2 of 40 rows have no 'user', the key of the user, {left}",
        f"embed: 7 of 40 rows have no 'item', the key of the item, {left}",
    ]
    caplog.clear()
    frame.dropna(subset=["user", "item"]).to_parquet(tmp_path / "whole.parquet")
    update_embeddings(run, shop.bundle, shop.pipeline(), [str(tmp_path / "whole.parquet")], EmbedSettings())
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_vectors_are_the_same_however_many_rows_are_computed_at_once(shop, run, tmp_path, monkeypatch):
    features = shop.pipeline().features()
    embed(run, shop.bundle, features, EmbedSettings())
    again = shutil.copytree(shop.run, tmp_path / "again", ignore=shutil.ignore_patterns(STAGE))
    monkeypatch.setattr(embed_write, "ROWS_AT_ONCE", 7)
    embed(again, shop.bundle, features, EmbedSettings())
    require_equal(opened(again, shop), opened(run, shop))


def test_what_exists_is_not_made_again_and_old_versions_go(shop, run, tmp_path):
    features = shop.pipeline().features()
    first = embed(run, shop.bundle, features, EmbedSettings())
    assert not first.skipped
    held = opened(run, shop)
    vectors = held.item.vectors.clone()
    assert embed(run, shop.bundle, features, EmbedSettings()).skipped
    for number in range(3):
        sales(number, 5)[["user", "age"]].assign(at=2**62).to_parquet(tmp_path / f"{number}.parquet")
        update_embeddings(run, shop.bundle, shop.pipeline(), [str(tmp_path / f"{number}.parquet")], EmbedSettings())
    kept = [path for path in (run / STAGE).iterdir() if path.is_dir() and not path.is_symlink()]
    assert len(kept) == 2
    assert (run / STAGE / LATEST).resolve() in kept
    assert not held.folder.exists()
    assert torch.equal(held.item.vectors, vectors)  # who has it open, still has it


def test_two_updates_at_once_both_stay(shop, run, tmp_path, monkeypatch):
    """Each starts from the version before, so the second has to wait for what the first makes of it."""
    embed(run, shop.bundle, shop.pipeline().features(), EmbedSettings())
    for name in ("one", "other"):
        pd.DataFrame({"user": [name], "age": [0.0], "at": [2**62]}).to_parquet(tmp_path / f"{name}.parquet")

    def update(name: str) -> None:
        update_embeddings(run, shop.bundle, shop.pipeline(), [str(tmp_path / f"{name}.parquet")], EmbedSettings())

    other, gather = threading.Thread(target=update, args=["other"]), stage._gather

    def meanwhile(*arguments):
        if threading.current_thread() is not other and not other.is_alive():
            other.start()
            other.join(timeout=2)  # for ever, as it waits for this one
        return gather(*arguments)

    monkeypatch.setattr(stage, "_gather", meanwhile)
    update("one")
    other.join(timeout=60)
    assert {"one", "other"} <= set(opened(run, shop).user.keys.tolist())


class Killed(Exception):
    pass


CLOCK = SimpleNamespace(perf_counter=time.perf_counter)  # the stage's own, for other threads ask for the time too
# What dies, and after how many calls.
POINTS = {
    "before the first words": (embed_write.MatrixWriter, "append", 0),
    "before the second entity's words": (embed_write.MatrixWriter, "append", 2),
    "before the index": (stage, "write_index", 0),
    "before the manifest": (CLOCK, "perf_counter", 1),
    "at the rename": (stage.Path, "rename", 0),
    "before latest moves": (stage, "atomic_symlink", 0),
}


@pytest.mark.parametrize("point", list(POINTS))
def test_a_crash_leaves_the_old_version_readable_and_the_next_run_whole(shop, run, tmp_path, monkeypatch, point):
    embed(run, shop.bundle, shop.pipeline().features(), EmbedSettings())
    before = opened(run, shop)
    sales(5, 9)[["user", "age"]].assign(at=2**62).to_parquet(tmp_path / "new.parquet")
    monkeypatch.setattr(stage, "time", CLOCK)
    where, name, passing = POINTS[point]
    real, calls = getattr(where, name), []

    def dies(*arguments, **named):
        calls.append(None)
        if len(calls) <= passing:
            return real(*arguments, **named)
        raise Killed

    monkeypatch.setattr(where, name, dies)
    with pytest.raises(Killed):
        update_embeddings(run, shop.bundle, shop.pipeline(), [str(tmp_path / "new.parquet")], EmbedSettings())
    monkeypatch.undo()
    assert opened(run, shop).folder == before.folder
    require_equal(opened(run, shop), before)
    update_embeddings(run, shop.bundle, shop.pipeline(), [str(tmp_path / "new.parquet")], EmbedSettings())
    assert opened(run, shop).folder != before.folder
    assert not list((run / STAGE).glob(".tmp-*"))


def test_a_damaged_version_is_put_aside_and_made_again(shop, run):
    features = shop.pipeline().features()
    artifact = embed(run, shop.bundle, features, EmbedSettings())
    path = artifact.path / "items" / "vectors.npy"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(EmbeddingsError, match=r"items/vectors\.npy is not what the manifest says"):
        opened(run, shop)
    assert not embed(run, shop.bundle, features, EmbedSettings()).skipped
    assert len(opened(run, shop).item) == 60


class Bare(Model):
    """A model without towers, of the shop's inputs."""

    def forward(self, ids, floats):
        return floats[:, :1]


class Wild(Bare):
    """One whose items' vectors are beyond float16, or not numbers."""

    value = 1e5

    def item_vectors(self, ids, floats):
        return torch.full((len(ids), 2), self.value)


def test_a_model_without_towers_has_rows_and_words_stored_and_no_vectors(shop, run):
    bundle = Bundle(shop.bundle.preprocessor, Bare(shop.bundle.model.inputs, None), {})
    artifact = embed(run, bundle, shop.pipeline().features(), EmbedSettings())
    found = StoredEmbeddings.load(run / STAGE, bundle)
    assert found.item.vectors is None
    assert found.item.index is None
    assert len(found.item.words) == len(found.item.rows()) == 60
    assert not (artifact.path / "items" / "vectors.npy").exists()
    with pytest.raises(EmbeddingsError, match="no item vectors to index"):
        embed(run, bundle, shop.pipeline().features(), EmbedSettings(index="approximate"))


@pytest.mark.parametrize(
    ("value", "dtype", "message"),
    [
        (1e5, "float16", "that float16 has no room for. Store them as float32"),
        (float("nan"), "float32", "train it again"),
    ],
)
def test_vectors_that_cannot_be_stored_are_refused(shop, run, monkeypatch, value, dtype, message):
    monkeypatch.setattr(Wild, "value", value)
    bundle = Bundle(shop.bundle.preprocessor, Wild(shop.bundle.model.inputs, None), {})
    with pytest.raises(EmbeddingsError, match=message):
        embed(run, bundle, shop.pipeline().features(), EmbedSettings(dtype))
    assert [path.name for path in (run / STAGE).iterdir()] == []


def test_an_index_over_the_items_is_stored_with_its_recall(shop, run):
    artifact = embed(run, shop.bundle, shop.pipeline().features(), EmbedSettings("float16", "approximate", 0.9))
    report = artifact.manifest["entities"]["item"]["index"]
    assert report == json.loads((artifact.path / "items" / "index" / "index.json").read_text())
    assert 0.9 <= report["recall"] <= 1
    found = opened(run, shop)
    answer = found.item.index.search(found.user.vectors[:3].float(), 4)
    products = found.user.vectors[:3].double() @ found.item.vectors.double().T
    assert answer.scores.double() == pytest.approx(products.topk(4).values, abs=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dtype": "int8"}, "unknown dtype 'int8'. Known: float32, float16"),
        ({"index": "hnsw"}, "unknown index 'hnsw'. Known: auto, exact, approximate"),
        ({"recall": 0.0}, r"recall must be in \(0, 1\]"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(EmbeddingsError, match=message):
        EmbedSettings(**settings)


def test_a_schema_without_entities_or_with_keys_that_cannot_be_looked_up_is_refused(shop, run, monkeypatch):
    preprocessor = replace(shop.bundle.preprocessor, schema=Schema(SHOP.columns, SHOP.targets))
    with pytest.raises(EmbeddingsError, match=r"does not say which columns .*features\.entities"):
        embed(run, replace(shop.bundle, preprocessor=preprocessor), shop.pipeline().features(), EmbedSettings())
    monkeypatch.setattr("gigabatch.pipeline.embedding.embed.KEY_TYPES", {"string": None})
    with pytest.raises(EmbeddingsError, match="the key 'item' of the item is int64"):
        embed(run, shop.bundle, shop.pipeline().features(), EmbedSettings())


def test_the_command_embeds_updates_and_says_what_it_did(shop, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    arguments = ["--config", str(shop.config)]
    assert main(["embed", *arguments, "--dtype", "float16"]) == 0
    out = capsys.readouterr().out
    folder = (shop.run / STAGE / LATEST).resolve()
    assert out.splitlines()[-1] == str(folder)
    assert "float16" in out
    assert "users' vectors are those of a null context (hour)" in out
    new = without_null_times(sales(8, 1).assign(user="new", item=FIRST_ITEM + 999))
    new.to_parquet(tmp_path / "new.parquet")
    assert main(["embed", *arguments, "--run", str(shop.run), "--update", str(tmp_path / "new.parquet")]) == 0
    found = opened(shop.run, shop)
    assert found.item.find([FIRST_ITEM + 999]).tolist() == [60]
    assert json.loads((found.folder / MANIFEST).read_text())["entities"]["user"]["rows"] == 41
    assert main(["embed", *arguments, "--dtype", "int8"]) == 2
    assert "gigabatch: embed: unknown dtype 'int8'" in capsys.readouterr().err
    assert main(["embed", *arguments, "features.entities=false", "--run", str(tmp_path)]) == 2
    assert "no model there" in capsys.readouterr().err


def test_vectors_made_on_any_device_agree_with_those_of_the_cpu(shop, run, any_device):
    embed(run, shop.bundle, shop.pipeline().features(), EmbedSettings())
    expected = opened(run, shop)
    bundle = load_bundle(run / "model", any_device)
    embed(run, bundle, shop.pipeline().features(), EmbedSettings())
    found = StoredEmbeddings.load(run / STAGE, bundle)
    assert (found.folder == expected.folder) is (any_device == "cpu")
    assert torch.equal(found.item.words, expected.item.words)
    assert np.allclose(found.item.vectors.numpy(), expected.item.vectors.numpy(), atol=1e-5)
