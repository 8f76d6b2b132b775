"""Stored embeddings as a service reads them: found by key, of this bundle only, whole or refused."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.encoding.settings import PreprocessorSettings
from gigabatch.features.schema import Column, Schema, Target
from gigabatch.features.vocabulary.vocabulary import IdLayout, Vocabulary
from gigabatch.models.shelf import ModelSpec, model_class
from gigabatch.pipeline.bundle import Bundle, load_bundle
from gigabatch.pipeline.embedding.embed import embed
from gigabatch.pipeline.embedding.embeddings import STAGE, EmbeddingsError, StoredEmbeddings, bundle_identity
from gigabatch.pipeline.embedding.settings import EmbedSettings
from gigabatch.pipeline.store.artifacts import MANIFEST
from gigabatch.pipeline.training.train import model_inputs
from tests.examples import examples
from tests.pipeline.read_only import unreadable
from tests.pipeline.shop_rows import FIRST_ITEM, trained_shop

KINDS = {"word": "string", "number": "int64", "flag": "bool"}


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A trained run with stored embeddings, an index among them."""
    made = trained_shop(tmp_path_factory.mktemp("shop"))
    embed(made.run, made.bundle, made.pipeline().features(), EmbedSettings(index="approximate"))
    return made


@pytest.fixture
def folder(shop, tmp_path):
    """A copy of the version, to be damaged."""
    return shutil.copytree((shop.run / STAGE / "latest").resolve(), tmp_path / "version")


@pytest.fixture(scope="module")
def stored(shop) -> StoredEmbeddings:
    return StoredEmbeddings.load(shop.run / STAGE, shop.bundle)


def test_a_version_is_opened_by_its_own_folder_or_as_the_latest(shop, stored, folder):
    assert stored.folder == (shop.run / STAGE / "latest").resolve()
    assert stored.key == stored.folder.name
    again = StoredEmbeddings.load(folder, shop.bundle)
    assert torch.equal(again.item.vectors, stored.item.vectors)
    assert len(again.user) == 40
    assert again.user.ids.shape == (40, 1)
    assert again.user.floats.shape == (40, 2)  # age, and whether it was null


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.one_of(st.none(), st.integers(0, 80).map(lambda number: FIRST_ITEM + number), st.integers(-3, 3))))
def test_items_are_found_as_a_dict_finds_them(stored, keys):
    rows = {key: row for row, key in enumerate(stored.item.keys.tolist())}
    found = stored.item.find(keys)
    assert found.dtype == np.int64
    assert found.tolist() == [rows.get(key, -1) for key in keys]
    column = pd.Series(pd.array(keys, dtype="Int64"))
    assert stored.item.find(column).tolist() == found.tolist()


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.one_of(st.none(), st.integers(0, 60).map(lambda number: f"u{number}"), st.text(max_size=3))))
def test_users_are_found_by_text(stored, keys):
    rows = {key: row for row, key in enumerate(stored.user.keys.tolist())}
    try:
        "".join(key or "" for key in keys).encode()
    except UnicodeEncodeError:  # half of a surrogate pair is no text
        with pytest.raises(EmbeddingsError, match="surrogates not allowed"):
            stored.user.find(keys)
        return
    assert stored.user.find(keys).tolist() == [rows.get(key, -1) for key in keys]
    assert stored.user.find(np.array(keys, dtype=object)).tolist() == [rows.get(key, -1) for key in keys]


@pytest.mark.parametrize("strange", [FIRST_ITEM - 1, None])
def test_rows_to_index_with_are_those_of_items_that_are_there_alone(stored, strange):
    keys = stored.item.keys.tolist()[::-1]
    assert stored.item.require(keys).tolist() == list(range(len(keys)))[::-1]
    assert stored.item.require(pd.Series(keys[:2], index=[7, 3])).tolist() == [len(keys) - 1, len(keys) - 2]
    for asked in ([keys[0], strange, strange], pd.Series([keys[0], strange, strange], dtype=object)):
        with pytest.raises(EmbeddingsError, match=rf"items: of 3 keys 2 are not stored, such as {strange}\."):
            stored.item.require(asked)


@pytest.mark.parametrize(
    ("entity", "keys"),
    [
        ("item", ["x"]),
        ("item", [1.5]),
        ("item", [True]),
        ("item", [2**70]),
        ("item", [[1]]),
        ("item", pd.Series(["17"])),
        ("item", np.array([1.5])),
        ("user", [b"u1"]),
        ("user", pd.Series([1, 2], dtype="category")),
        ("user", [7]),
        ("user", ["u1", 7]),
        ("user", pd.Series([1, 2])),
    ],
)
def test_keys_of_another_type_are_refused_by_name(stored, entity, keys):
    with pytest.raises(EmbeddingsError, match=rf"{entity}s: keys are of type \w+ \(column '{entity}'\)"):
        getattr(stored, entity).find(keys)


def test_the_form_of_the_keys_does_not_matter(stored):
    known = stored.item.keys.tolist()[:3]
    for keys in (known, tuple(known), np.array(known), pd.Series(known), pd.Series(known).astype("category")):
        assert stored.item.find(keys).tolist() == [0, 1, 2]
    assert stored.item.find([3.0, float("nan")]).tolist() == [-1, -1]
    texts = stored.user.keys.tolist()[:2]
    for column in (pd.Series(texts), pd.Series(texts).astype("category"), pd.Series(texts, dtype="object")):
        assert stored.user.find(column).tolist() == [0, 1]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's list of mapped files")
def test_vectors_and_words_are_mapped_and_the_index_is_opened_once(stored):
    assert stored.item.index is stored.item.index
    mapped = Path("/proc/self/maps").read_text()
    assert all(str(stored.folder / "items" / name) in mapped for name in ("vectors.npy", "words.npy"))


class TestIdentity:
    def test_it_is_the_same_in_memory_and_after_saving_and_loading(self, shop, tmp_path):
        shop.bundle.save(tmp_path)
        assert bundle_identity(load_bundle(tmp_path)) == bundle_identity(shop.bundle)
        other = replace(shop.bundle, info={"name": "renamed"})
        assert bundle_identity(other) == bundle_identity(shop.bundle)

    def test_it_never_changes(self):
        """Stored embeddings name it; this one is from before its parts were shared with the checksum of a fit."""
        columns = [Column(name, "categorical", kind) for name, kind in KINDS.items()]
        columns += [Column("x", "continuous", "float32"), Column("y", "target", "int32")]
        values = {"word": ["b", "äö", ""], "number": [7, -1, 7], "flag": [True, False, True]}
        rows = pd.DataFrame(values | {"x": [1.0, 2.0, 4.0], "y": [0, 1, 0]})
        rows = rows.astype({"word": "str", "x": "float32", "y": "int32"})
        schema = Schema(tuple(columns), (Target("y", "binary"),))
        preprocessor = Preprocessor(schema, PreprocessorSettings(indicator="none", bins=0)).fit([rows])
        inputs = replace(model_inputs(preprocessor), targets=(), float_names=())  # as a bundle of then is loaded
        model = ModelSpec("lr", inputs, model_class("lr").Settings()).build().eval()
        for weights in model.state_dict().values():
            weights.zero_()
        assert bundle_identity(Bundle(preprocessor, model, {})) == "4a297e5ac2eeaf36cd0f84b8e22631ff"

    def changed(self, shop, change):
        bundle = load_bundle(shop.run / "model")
        change(bundle)
        return bundle_identity(bundle) != bundle_identity(shop.bundle)

    def test_it_differs_with_a_single_weight(self, shop):
        def change(bundle):
            with torch.no_grad():
                weight = next(bundle.model.parameters()).view(-1)
                weight[0] = torch.nextafter(weight[0], torch.tensor(9.0))

        assert self.changed(shop, change)

    @pytest.mark.parametrize("change", ["fill", "scale", "vocabulary", "order", "layout", "settings"])
    def test_it_differs_with_what_turns_values_into_inputs(self, shop, change):
        def edit(bundle):
            preprocessor: Preprocessor = bundle.preprocessor
            known: Vocabulary = preprocessor.vocabularies["colour"]
            if change == "fill":
                preprocessor.fills["age"] = replace(preprocessor.fills["age"], value=np.nextafter(0.5, 1))
            elif change == "scale":
                preprocessor.scales["age"] = replace(preprocessor.scales["age"], std=2.0)
            elif change == "vocabulary":
                preprocessor.vocabularies["colour"] = replace(known, values=known.values.replace("red", "rod"))
            elif change == "order":
                preprocessor.vocabularies["colour"] = replace(known, values=known.values[::-1].reset_index(drop=True))
            elif change == "layout":
                preprocessor.vocabularies["colour"] = replace(known, layout=IdLayout(0, 2, 1))
            else:
                bundle.model.settings = replace(bundle.model.settings, normalise=False)

        assert self.changed(shop, edit)


def test_vectors_of_another_bundle_are_refused(shop, folder):
    with torch.no_grad():
        other = load_bundle(shop.run / "model")
        next(other.model.parameters()).add_(1.0)
    with pytest.raises(
        EmbeddingsError, match=r"made by the bundle \w{32}, and this one is \w{32}.*Run gigabatch embed"
    ):
        StoredEmbeddings.load(folder, other)


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


FILES = ["ids.parquet", "vectors.npy", "words.npy", "rows.parquet", "index/index.faiss", "index/index.json"]


@pytest.mark.parametrize("file", FILES)
def test_a_truncated_changed_or_missing_file_is_refused_by_name(shop, folder, file):
    path = folder / "items" / file
    whole = path.read_bytes()
    for damage in (cut, flip):
        damage(path)
        with pytest.raises(EmbeddingsError, match=f"items/{file} is not what the manifest says. Run gigabatch embed"):
            StoredEmbeddings.load(folder, shop.bundle)
        path.write_bytes(whole)
    cut(path)
    with pytest.raises(EmbeddingsError, match=f"items/{file} is not what"):
        StoredEmbeddings.load(folder, shop.bundle, verify=False)
    path.unlink()
    with pytest.raises(EmbeddingsError, match=f"{file} is not there"):
        StoredEmbeddings.load(folder, shop.bundle)


def edit(folder, **changes):
    path = folder / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / MANIFEST).write_text("[]"), "the manifest is damaged"),
        (lambda folder: cut(folder / MANIFEST), "the manifest is damaged"),
        (lambda folder: edit(folder, entities=None), "damaged"),
        (lambda folder: edit(folder, entities={"user": {}}), "damaged"),
        (lambda folder: edit(folder, entities={"shop": {}}), "damaged"),
        (lambda folder: edit(folder, format=99), r"format 99, this version reads 1\. Run gigabatch embed again"),
        (lambda folder: shutil.rmtree(folder), r"manifest\.json is not there"),
    ],
)
def test_a_damaged_manifest_is_an_error_that_says_what_to_do(shop, folder, damage, message):
    damage(folder)
    with pytest.raises(EmbeddingsError, match=message):
        StoredEmbeddings.load(folder, shop.bundle)


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("name", [MANIFEST, "items/words.npy", "users/ids.parquet"])
def test_embeddings_that_this_user_may_not_read_are_not_called_damaged(shop, folder, name, verify):
    said = rf"embeddings {folder}.*cannot be read \(.*Permission denied.*, so nobody can tell"
    with unreadable(folder / name), pytest.raises(PermissionError, match=said):
        StoredEmbeddings.load(folder, shop.bundle, verify)
    StoredEmbeddings.load(folder, shop.bundle, verify)


@pytest.mark.parametrize(
    ("file", "matrix"),
    [
        ("vectors.npy", np.zeros((59, 6), "float32")),
        ("vectors.npy", np.zeros((60, 6), "float64")),
        ("words.npy", np.zeros((60, 2), "int32")),
        ("words.npy", np.zeros((60, 7), "int32").T),
        ("vectors.npy", np.array([object()])),
    ],
)
def test_files_that_do_not_belong_together_are_refused(shop, folder, file, matrix):
    """A version that was put together by hand, with sizes and all that the manifest says."""
    np.save(folder / "items" / file, matrix, allow_pickle=True)
    files = json.loads((folder / MANIFEST).read_text())["files"]
    files[f"items/{file}"]["bytes"] = (folder / "items" / file).stat().st_size
    edit(folder, files=files)
    with pytest.raises(EmbeddingsError, match=r"belong together|row-major|damaged"):
        StoredEmbeddings.load(folder, shop.bundle, verify=False)


def test_nothing_stored_yet_says_which_command_stores_it(shop, tmp_path):
    with pytest.raises(EmbeddingsError, match="Run gigabatch embed"):
        StoredEmbeddings.load(tmp_path, shop.bundle)
