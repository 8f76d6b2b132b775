"""Requests with lists: the predictions of `Bundle.predict` for the same rows, and what is refused."""

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.schema import Column, Entity, ListColumn, Schema, Target
from gigabatch.models.layers.fields import tables_of
from gigabatch.models.model import Model
from gigabatch.models.shelf import ModelSpec, model_class
from gigabatch.pipeline.bundle import Bundle, frame_lists
from gigabatch.pipeline.config.serving import ServeSettings
from gigabatch.pipeline.serving.catalogue import Catalogue
from gigabatch.pipeline.serving.errors import ServingError
from gigabatch.pipeline.serving.ranker import Ranker
from gigabatch.pipeline.serving.scorer import RowScorer
from gigabatch.pipeline.serving.served import ServedBundle, load_served, open_ranker, self_test
from gigabatch.pipeline.training.train import model_inputs
from tests.pipeline.serving.small_bundles import write_run

NUM_USERS, NUM_ITEMS = 12, 20
SCHEMA = Schema(
    (
        Column("user", "categorical", "string"),
        Column("age", "continuous", "float32"),
        Column("item", "categorical", "int64"),
        Column("hour", "categorical", "int64"),
        Column("clicked", "target", "int32"),
    ),
    (Target("clicked", "binary"),),
    (Entity("user", "user", ("user", "age", "liked")), Entity("item", "item", ("item", "tags"))),
    (
        ListColumn("liked", "int64", shares="item", weights="stars", max_length=4),
        ListColumn("tags", max_length=3),
        ListColumn("basket", "int64", shares="item"),
    ),
)
LIKED = {f"u{n}": ([1000 + (n * k) % NUM_ITEMS for k in range(n % 6)], [float(k + 1) for k in range(n % 6)])
         for n in range(NUM_USERS)}  # fmt: skip
TAGS = {1000 + n: ["abcde"[(n * k) % 5] for k in range(n % 5)] for n in range(NUM_ITEMS)}
CONTEXT = {"hour": 3, "basket": [1001, 1001, None, 77]}


def rows_of(users, items, **context) -> pd.DataFrame:
    """Rows of the features stage of users and items, one beside the other."""
    liked = [LIKED.get(user, (None, None)) for user in users]
    return pd.DataFrame(
        {
            "user": pd.array(users, "str"),
            "age": [float(int(user[1:])) if user in LIKED else np.nan for user in users],
            "item": list(items), "liked": [pair[0] for pair in liked], "stars": [pair[1] for pair in liked],
            "tags": [TAGS[item] for item in items],
            **{name: [value] * len(users) for name, value in (CONTEXT | context).items()},
        }
    )  # fmt: skip


class Towers(Model):
    """Vectors of user and item, each of the pooled lists and ids of its own columns."""

    takes_lists = True

    def __init__(self, inputs) -> None:
        super().__init__(inputs, object())
        self.tables = tables_of(inputs, 4)

    def _vectors(self, entity, ids, floats, lists):
        self.require_inputs(ids, floats, lists)
        fields = self.tables(ids, lists).unflatten(1, (-1, 4))
        return fields[:, [*entity.ids, *(ids.shape[1] + place for place in entity.lists)]].sum(1)

    def user_vectors(self, ids, floats, lists=()):
        inputs = self.inputs
        fields = self.tables(ids, lists).unflatten(1, (-1, 4))
        context = [*inputs.context_ids, *(ids.shape[1] + place for place in inputs.context_lists)]
        return self._vectors(inputs.user, ids, floats, lists) + fields[:, context].sum(1)

    def item_vectors(self, ids, floats, lists=()):
        return self._vectors(self.inputs.item, ids, floats, lists)

    def score(self, user_vectors, item_vectors):
        return (user_vectors * item_vectors).sum(1, keepdim=True)

    def forward(self, ids, floats, lists=()):
        return self.score(self.user_vectors(ids, floats, lists), self.item_vectors(ids, floats, lists))


def bundle_of(kind: str) -> Bundle:
    draw = np.random.default_rng(3)
    users, items = draw.choice(list(LIKED), 200), draw.choice(list(TAGS), 200)
    train = rows_of([*LIKED, *users], [*list(TAGS)[: len(LIKED)], *items]).assign(clicked=draw.integers(0, 2, 212))
    train["hour"] = draw.integers(0, 24, len(train))
    preprocessor = Preprocessor(SCHEMA).fit([train])
    inputs = model_inputs(preprocessor)
    torch.manual_seed(0)
    model = Towers(inputs) if kind == "towers" else ModelSpec(kind, inputs, model_class(kind).Settings()).build()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_((0.5 if kind == "towers" else 0.05) * torch.randn_like(parameter))
    return Bundle(preprocessor, model.eval(), {"name": "lists"})


class Stored(SimpleNamespace):
    """Stored users or items as `pipeline/embedding` gives them, made by `Bundle`'s own encoder from a frame."""

    def __len__(self) -> int:
        return len(self.keys)


def stored(bundle: Bundle, name: str, history: bool = False) -> Stored:
    """history: whether the users' baskets are stored with them."""
    frame = rows_of([*LIKED], [1000] * NUM_USERS) if name == "user" else rows_of(["u0"] * NUM_ITEMS, [*TAGS])
    columns = getattr(bundle.model.inputs, name)
    words = torch.from_numpy(bundle.preprocessor.pack(frame, targets=False))
    ids, floats = words[:, :3], words[:, 3:].view(torch.float32)
    vectors = None
    if isinstance(bundle.model, Towers) and name == "item":
        with torch.no_grad():
            vectors = bundle.model.item_vectors(ids, floats, frame_lists(bundle.preprocessor, frame))
    found = frame_lists(bundle.preprocessor, frame)
    lists = {place: found[place] for place in columns.lists} | ({2: found[2]} if name == "user" and history else {})
    return Stored(
        name=name, dtype="string" if name == "user" else "int64", keys=frame[name], ids=ids[:, list(columns.ids)],
        floats=floats[:, list(columns.floats)], vectors=vectors, index=None, lists=lists,
    )  # fmt: skip


def served_of(bundle: Bundle, folder, history: bool = False) -> ServedBundle:
    both = SimpleNamespace(user=stored(bundle, "user", history), item=stored(bundle, "item"), folder="s")
    ranker = open_ranker(bundle, both)
    found = ServedBundle(folder, bundle, RowScorer(bundle), ranker)
    self_test(found)
    return found


@pytest.fixture(scope="module", params=["dcn", "towers"])
def served(request, tmp_path_factory):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield served_of(bundle_of(request.param), tmp_path_factory.mktemp("run"))
    torch.set_num_threads(before)


@pytest.fixture
def post(served, make_caller):
    caller = make_caller(served, ServeSettings(max_list=6))

    def post(path, content, status=200):
        answer = caller.post(path, content)
        assert answer.status_code == status, answer.text
        return answer.json()

    return post


def as_json(frame: pd.DataFrame) -> list[dict]:
    plain = frame.astype(object).where(frame.notna().to_numpy(), None)
    return json.loads(json.dumps(plain.to_dict("records")))


def expected(served: ServedBundle, frame: pd.DataFrame) -> np.ndarray:
    return served.bundle.predict(frame)["clicked"].to_numpy()


def close(found, wanted) -> bool:
    return np.allclose(np.array(found, float), wanted, rtol=1e-5, atol=1e-6)


def test_rows_with_lists_are_scored_as_in_a_frame(post, served):
    frame = rows_of(["u1", "u5", "u11", "new", "u0"], [1000, 1004, 1019, 1003, 1001])
    rows = as_json(frame)
    wanted = expected(served, frame)
    assert ((wanted > 1e-4) & (wanted < 1 - 1e-4)).all()
    assert len(set(wanted.round(6))) == 5
    assert close(post("/score", {"rows": rows})["predictions"]["clicked"], wanted)
    for row, one in zip(rows, wanted, strict=True):  # a row alone as among others
        assert close(post("/score", {"rows": [row]})["predictions"]["clicked"], [one])
    emptied = frame.assign(liked=None, stars=None, tags=[[]] * 5, basket=None)
    nulls = [row | {"liked": None, "stars": [], "tags": [], "basket": None} for row in rows]
    found = post("/score", {"rows": nulls})["predictions"]["clicked"]
    assert close(found, expected(served, emptied))
    assert not close(found, wanted)  # the lists matter


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"tags": "a|b"}, "list column 'tags' holds 'a|b' of str"),
        ({"tags": [["a"]]}, "element 0 of column 'tags' is a list"),
        ({"tags": ["a"] * 7}, "column 'tags' is a list of 7 elements; at most 6 are taken"),
        ({"basket": ["x"]}, "column 'basket' is declared int64"),
        ({"basket": [0.5]}, "it has a fraction"),
        ({"stars": [1.0]}, "5 elements and 1 weights in 'stars'"),
        ({"stars": ["x"] * 5}, "which is no float32"),
        ({"stars": [1e39] * 5}, "hold a null, NaN or infinity"),
        ({"hour": [3]}, "column 'hour' is declared int64"),
        ({"basket": ...}, "missing column(s): 'basket'"),
        ({"stars": ...}, "missing column(s): 'stars'"),
    ],
)
def test_a_row_whose_lists_do_not_fit_is_named(post, changed, said):
    good = as_json(rows_of(["u5"], [1004]))[0]
    bad = {name: value for name, value in (good | changed).items() if value is not ...}
    answer = post("/score", {"rows": [good, good, bad]}, 422)
    assert answer["fields"][0]["field"] == "rows[2]"
    assert said in answer["message"]


def test_a_stored_users_lists_stand_beside_each_items_own(post, served):
    items = [1004, 1000, 1019, 1007, 1003]
    for user in ("u0", "u5", "u11"):
        found = post("/rank", {"user": user, "items": [*items, 5], "context": CONTEXT})
        assert found["unknown_items"] == [5]
        assert close(found["scores"][:-1], expected(served, rows_of([user] * 5, items)))


def test_a_user_that_is_described_or_unknown_has_lists_too(post, served):
    items = [1004, 1000, 1019]
    features = {"age": 31.0, "liked": [1004, None, 9, 1002], "stars": [1.0, 2.0, 3.0, 0.5]}
    frame = rows_of(["nobody"] * 3, items).assign(age=31.0)
    wanted = frame.assign(liked=[features["liked"]] * 3, stars=[features["stars"]] * 3)
    found = post("/rank", {"user": "nobody", "user_features": features, "items": items, "context": CONTEXT})
    assert close(found["scores"], expected(served, wanted))
    found = post("/rank", {"user": "nobody", "items": items, "context": CONTEXT | {"basket": []}})
    assert close(found["scores"], expected(served, rows_of(["nobody"] * 3, items, basket=[])))


@pytest.mark.parametrize(
    ("body", "field", "said"),
    [
        ({"user": "u1", "context": CONTEXT | {"basket": ["x"]}}, "context", "'basket' is declared int64"),
        ({"user": "u1", "context": {"hour": 3}}, "context", "missing column(s): 'basket'"),
        (
            {"user_features": {"age": 1.0, "liked": [1]}, "context": CONTEXT},
            "user_features",
            "missing column(s): 'star",
        ),
        ({"user_features": {"age": 1.0, "liked": [1], "stars": []}, "context": CONTEXT}, "user_features", "1 elements"),
        ({"user_features": {"age": 1.0, "liked": "1", "stars": [1]}, "context": CONTEXT}, "user_features", "of str"),
        ({"user": "u1", "context": CONTEXT | {"basket": "1"}}, "context", "context: list column 'basket' holds '1'"),
    ],
)
def test_a_users_lists_that_do_not_fit_are_named(post, body, field, said):
    answer = post("/rank", body | {"items": [1000]}, 422)
    assert answer["fields"][0]["field"] == field
    assert said in answer["message"]
    assert "OnlineTransformer" not in answer["message"]  # of which no client knows


def test_a_list_of_a_row_that_is_text_is_named_in_the_columns_words(post):
    row = dict.fromkeys(rows_of(["u1"], [1000]).columns) | {"basket": "1"}
    answer = post("/score", {"rows": [row | {"basket": []}, row]}, 422)
    assert answer["fields"][0]["field"] == "rows[1]"
    assert answer["message"].startswith("rows[1]: list column 'basket' holds '1'")


def test_many_candidates_of_long_lists_are_scored_in_parts(post, served, monkeypatch):
    asked = {"user": "u11", "items": [*TAGS], "context": CONTEXT}
    whole = post("/rank", asked)["scores"]
    calls = []
    model = served.bundle.model
    handle = model.register_forward_pre_hook(lambda _, given: calls.append(len(given[0])))
    monkeypatch.setattr("gigabatch.pipeline.serving.ranker.ELEMENTS_AT_ONCE", 40)
    try:
        assert close(post("/rank", asked)["scores"], whole)
    finally:
        handle.remove()
    if isinstance(model, Towers):
        assert calls == []  # the user's tower ran once, on one row
    else:  # u11 has 5 liked, of which 4 count; the basket 3; an item at most 3 tags: 10 a row
        assert calls == [4, 4, 4, 4, 4]


def test_recommendations_are_by_lists(post, served):
    found = post("/recommend", {"user": "u5", "k": 20, "context": CONTEXT})
    wanted = expected(served, rows_of(["u5"] * NUM_ITEMS, [*TAGS]))
    assert close(found["scores"], np.sort(wanted)[::-1])


@pytest.mark.parametrize("kind", ["sasrec", "two_tower"])
def test_items_that_train_does_not_have_are_recommended_where_the_model_reads_their_lists(kind, tmp_path, make_caller):
    """sasrec reads no list of an item's own: its items without a row in train share one vector, whatever their tags."""
    schema = Schema(
        (SCHEMA.columns[0], SCHEMA.columns[2], SCHEMA.columns[4]),
        SCHEMA.targets,
        (Entity("user", "user", ("user",)), Entity("item", "item", ("item", "tags"))),
        (ListColumn("tags"), ListColumn("basket", "int64", shares="item")),
    )
    frame = rows_of([f"u{n % NUM_USERS}" for n in range(60)], [1000 + n % NUM_ITEMS for n in range(60)], basket=[1001])
    frame = frame[["user", "item", "tags", "basket"]].assign(clicked=np.arange(60) % 2)
    known, new = set(range(1000, 1015)), set(range(1015, 1020))
    preprocessor = Preprocessor(schema).fit([frame[frame["item"].isin(known)]])
    torch.manual_seed(0)
    model = ModelSpec(kind, model_inputs(preprocessor), model_class(kind).Settings()).build().eval()
    folder = write_run(tmp_path / "run", Bundle(preprocessor, model, {"recipe": "small"}), frame)
    found = make_caller(load_served(folder)).post("/recommend", {"user": "u5", "k": 20}).json()["items"]
    assert set(found) == known | (set() if kind == "sasrec" else new)


def test_the_request_schema_says_how_long_a_list_may_be(post, served, make_caller):
    found = make_caller(served, ServeSettings(max_list=6))("GET", "/openapi.json").json()
    body = found["paths"]["/score"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    values = body["properties"]["rows"]["items"]["additionalProperties"]["anyOf"]
    assert [part["maxItems"] for part in values if part["type"] == "array"] == [6]
    again = make_caller(served, ServeSettings())("GET", "/openapi.json").json()
    assert '"maxItems": 6' not in json.dumps(again)


def test_lists_that_are_not_stored_are_refused():
    bundle = bundle_of("dcn")
    catalogues = [
        Catalogue(s.name, s.dtype, s.keys.tolist(), s.ids, s.floats, lists={1: s.lists[1]} if s.name == "item" else {})
        for s in (stored(bundle, "user"), stored(bundle, "item"))
    ]
    with pytest.raises(
        ServingError, match=r"the list column 'liked' of each user, and it is not stored. Run gigabatch"
    ):
        Ranker(bundle, *catalogues)
    user = stored(bundle, "user")
    with pytest.raises(ServingError, match=r"rows of user do not belong together: lengths \[11, 12\]"):
        Catalogue("user", "string", user.keys.tolist(), user.ids, user.floats, lists={0: user.lists[0].slice(0, 11)})


@pytest.mark.parametrize("kind", ["dcn", "towers"])
def test_a_history_that_is_stored_with_the_user_need_not_be_sent(kind, tmp_path, make_caller):
    bundle = bundle_of(kind)
    served = served_of(bundle, tmp_path, history=True)
    caller, items = make_caller(served), [1004, 1000, 1019]
    asked = {"user": "u5", "items": items, "context": {"hour": 3}}
    features = {"age": 31.0, "liked": [1002], "stars": [1.0]}
    new = {"basket": [1007, 1003]}
    frame = rows_of(["u5"] * 3, items)
    other = frame.assign(age=31.0, liked=[[1002]] * 3, stars=[[1.0]] * 3)
    bodies = {
        "stored": (asked, frame),
        "sent": (asked | {"context": {"hour": 3} | new}, frame.assign(basket=[new["basket"]] * 3)),
        "sent empty": (asked | {"context": {"hour": 3, "basket": None}}, frame.assign(basket=None)),
        "described": (asked | {"user_features": features}, other),
        "nobody's": (asked | {"user": "nobody"}, rows_of(["nobody"] * 3, items, basket=None)),
    }
    for name, (body, rows) in bodies.items():
        answer = caller.post("/rank", body)
        assert answer.status_code == 200, answer.text
        assert close(answer.json()["scores"], expected(served, rows)), name
    described = asked | {"user": "nobody", "user_features": features}
    for body in (described, asked | {"context": {"basket": [1]}}):
        answer = caller.post("/rank", body)
        assert (answer.status_code, answer.json()["fields"][0]["field"]) == (422, "context")


def test_a_saved_bundle_with_lists_is_loaded_and_scores(tmp_path, make_caller):
    bundle = bundle_of("dcn")
    bundle.save(tmp_path / "run" / "model")
    loaded = load_served(tmp_path / "run")
    frame = rows_of(["u1", "u5"], [1000, 1004])
    answer = make_caller(loaded).post("/score", {"rows": as_json(frame)})
    assert close(answer.json()["predictions"]["clicked"], bundle.predict(frame)["clicked"])
    assert make_caller(loaded)("GET", "/health").json()["why_not"].startswith("its users and items are not stored")
