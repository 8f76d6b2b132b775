"""MovieLens files in each of their formats: the same table from all, whatever titles hold; and the synthetic ones."""

import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gigabatch.features.errors import DataError
from gigabatch.features.recipes import recipe_class
from gigabatch.features.recipes.base import SplitFractions
from gigabatch.features.recipes.movielens.files import AGE_GROUPS, find_format, read_demographics, read_genres
from gigabatch.features.recipes.movielens.recipe import MovieLensRecipe, MovieLensSettings
from gigabatch.features.schema import Entity
from gigabatch.features.synthetic.movielens import (
    BETWEEN_SITTINGS,
    GENRES,
    MovieShape,
    MovieWorld,
    main,
    write_movielens,
)
from tests.examples import examples
from tests.features.damage import damaged

SPLITS = ("train", "valid", "test")
FORMATS = ("ml-100k", "ml-1m", "ml-latest")


def build(folder, **chosen):
    return MovieLensRecipe(MovieLensSettings(path=str(folder), **chosen)).build("pandas")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    found = {kind: tmp_path_factory.mktemp(kind) for kind in FORMATS}
    for kind, folder in found.items():
        write_movielens(folder, kind, 80, 120)
    return found


@pytest.fixture(scope="module")
def ratings(folders):
    """What Python's own means read from u.data."""
    lines = [line.split("\t") for line in (folders["ml-100k"] / "u.data").read_text().splitlines()]
    return [tuple(map(int, line)) for line in lines]


@pytest.mark.parametrize("kind", FORMATS)
def test_each_format_gives_the_table_that_is_in_the_file(folders, ratings, kind):
    tables = build(folders[kind])
    assert find_format(str(folders[kind])) == kind
    histories = {}
    for number, (user, item, _, time) in enumerate(ratings):
        histories.setdefault(user, []).append((time, number, item))
    expected = {name: [] for name in SPLITS}
    for user, history in histories.items():
        history.sort()
        for name, rows in zip(SPLITS, (history[:-2], history[-2:-1], history[-1:]), strict=True):
            expected[name] += [(user, item, time, number) for time, number, item in rows]
    for name, frame in tables.splits.items():
        columns = ["user_id", "item_id", "timestamp", "row_number"]
        assert sorted(frame[columns].itertuples(index=False, name=None)) == sorted(expected[name])
        assert (frame["target"] == 1).all()
    assert [(c.name, c.role, c.dtype) for c in tables.schema.columns] == [
        ("user_id", "categorical", "int64"), ("item_id", "categorical", "int64"), ("target", "target", "float32"),
        ("timestamp", "time", "int64"), ("row_number", "key", "int64"),
    ]  # fmt: skip
    assert tables.schema.entities == (Entity("user", "user_id", ("user_id",)), Entity("item", "item_id", ("item_id",)))


def test_genres_are_the_same_flags_in_every_format(folders):
    tables = {kind: build(folders[kind], genres=True) for kind in FORMATS}
    for one, other in itertools.pairwise(FORMATS):
        assert tables[one].schema == tables[other].schema
        for name in SPLITS:
            pd.testing.assert_frame_equal(tables[one].splits[name], tables[other].splits[name])
    world = MovieWorld.make(80, 120, 7)
    place = {item: k for k, item in enumerate(world.item_ids.tolist())}
    test = tables["ml-1m"].splits["test"]
    for name, column in (("Sci-Fi", "genre_sci_fi"), ("Children's", "genre_children"), ("War", "genre_war")):
        has = world.genres[[place[item] for item in test["item_id"]], GENRES.index(name)]
        np.testing.assert_array_equal(test[column], has.astype("float32"))
    assert tables["ml-1m"].schema.entity("item").columns[0] == "item_id"
    assert len(tables["ml-1m"].schema.entity("item").columns) == 1 + len(GENRES)


@pytest.mark.parametrize(("kind", "first_users_job"), [("ml-100k", "student"), ("ml-1m", "0")])
def test_demographics_are_age_groups_gender_and_occupation(folders, kind, first_users_job):
    tables = build(folders[kind], demographics=True)
    world = MovieWorld.make(80, 120, 7)
    test = tables.splits["test"].sort_values("user_id")
    assert test["age"].tolist() == world.ages.tolist()
    assert (test["gender"] == "M").tolist() == world.male.tolist()
    assert test["occupation"].iloc[0] == first_users_job
    assert tables.schema.entity("user").columns == ("user_id", "age", "gender", "occupation")


@pytest.mark.parametrize("kind", FORMATS)
def test_task_rating_tells_high_ratings_from_low_ones(folders, ratings, kind):
    tables = build(folders[kind], task="rating", split=SplitFractions(0.7, 0.2, 0.1))
    frame = pd.concat([tables.splits[name] for name in SPLITS]).sort_values("row_number")
    assert frame["target"].tolist() == [float(rating >= 4) for _, _, rating, _ in ratings]
    assert len(tables.splits["train"]) / len(ratings) == pytest.approx(0.7, abs=0.03)


def test_half_stars_and_a_byte_order_mark_are_read(tmp_path):
    # ml-10m: the files of ml-1m without users, half stars, titles in UTF-8.
    rows = [(u, m, s, 100 + m) for u in (1, 2) for m, s in ((5, 4.5), (6, 3.5), (7, 0.5), (8, 5))]
    text = "".join(f"{u}::{m}::{s}::{t}\n" for u, m, s, t in rows)
    (tmp_path / "ratings.dat").write_bytes(b"\xef\xbb\xbf" + text.encode())
    (tmp_path / "movies.dat").write_bytes(
        b"\xef\xbb\xbf5::Am\xc3\xa9lie (2001)::Comedy|Romance\r\n6::A::Drama\r\n7::B (C::D)::(no genres listed)\r\n"
        b"8::E::IMAX\r\n"
    )
    tables = build(tmp_path, task="rating", genres=True, split_by="leave_one_out")
    frame = pd.concat([tables.splits[name] for name in SPLITS]).sort_values("row_number")
    assert frame["target"].tolist() == [1.0, 0.0, 0.0, 1.0] * 2
    assert frame["user_id"].tolist() == [1] * 4 + [2] * 4
    assert frame["genre_comedy"].tolist() == [1.0, 0.0, 0.0, 0.0] * 2
    assert tables.schema.entity("item").columns[1:] == ("genre_comedy", "genre_drama", "genre_imax", "genre_romance")
    with pytest.raises(DataError, match=r"users\.dat': no such file"):
        build(tmp_path, demographics=True)


def test_titles_may_hold_what_parts_fields_and_lines(tmp_path):
    titles = ["2001: A Space Odyssey", "Part I::Part II", "\x85 And Justice \x1c for All", "Señorita", "a | b"]
    dat = "".join(f"{n}::{title} (1999)::Drama|Film-Noir\n" for n, title in enumerate(titles, 1))
    (tmp_path / "movies.dat").write_bytes(dat.encode("latin-1"))
    flags = "|0|0|0|0|0|0|0|0|1|0|1" + "|0" * 8
    item = "".join(f"{n}|{title} (1999)|01-Jan-1999||http://x{flags}\n" for n, title in enumerate(titles, 1))
    (tmp_path / "u.item").write_bytes(item.encode("latin-1"))
    lines = "".join(f'{n},"{title} (1999)",Drama|Film-Noir\n' for n, title in enumerate(titles, 1))
    (tmp_path / "movies.csv").write_text("movieId,title,genres\n" + lines, encoding="utf-8")
    for kind in FORMATS:  # u.genre numbers Drama 8 and Film-Noir 10
        found = read_genres("pandas", str(tmp_path), kind, None)
        assert found["item_id"].tolist() == [1, 2, 3, 4, 5]
        assert found["genre"].tolist() == ["Drama|Film-Noir"] * 5


def test_ages_in_years_become_age_groups(tmp_path):
    years = [7, 17, 18, 24, 34, 35, 44, 49, 50, 55, 56, 73]
    text = "".join(f"{n}|{age}|F|writer|00000\n" for n, age in enumerate(years, 1))
    (tmp_path / "u.user").write_text(text)
    found = read_demographics("pandas", str(tmp_path), "ml-100k")["age"].tolist()
    assert found == [1, 1, 18, 18, 25, 35, 35, 45, 50, 50, 56, 56]
    assert set(found) == set(AGE_GROUPS)


def test_inputs_are_the_files_that_are_read(folders):
    def names(kind, **more):
        recipe = MovieLensRecipe(MovieLensSettings(path=str(folders[kind]), **more))
        return [path.removeprefix(f"{folders[kind]}/") for path in recipe.inputs()]

    assert names("ml-100k") == ["u.data"]
    assert names("ml-1m", genres=True, demographics=True) == ["ratings.dat", "movies.dat", "users.dat"]
    assert names("ml-latest", genres=True) == ["ratings.csv", "movies.csv"]
    assert recipe_class("movielens") is MovieLensRecipe


def test_raw_rows_are_users_and_items_with_what_is_known_of_them(folders, tmp_path):
    recipe = MovieLensRecipe(MovieLensSettings(path=str(folders["ml-1m"]), genres=True, demographics=True))
    tables = recipe.build("pandas")
    test = tables.splits["test"].reset_index(drop=True)
    test[["item_id", "user_id"]].to_csv(tmp_path / "ask.csv", index=False)
    features = tables.schema.names("categorical", "continuous")
    found = recipe.raw_rows("pandas", str(tmp_path / "ask.csv"), features)
    pd.testing.assert_frame_equal(found[features], test[features])


@pytest.mark.parametrize(
    ("files", "given_settings", "message"),
    [
        ({}, {}, r"holds no MovieLens ratings.*ml-1m: ratings\.dat, movies\.dat.*grouplens\.org.*synthetic\.movielens"),
        ({"u.data": "1\t2\t3\t4\n", "ratings.csv": "userId\n"}, {}, r"several formats \(ml-100k, ml-latest\)"),
        ({"ratings.dat": "1:2:3:4\n"}, {}, r"ratings\.dat: column 'timestamp' is declared int64"),
        ({"ratings.dat": "1::2::3::4\n1:x:2::3::4\n"}, {}, r"ratings\.dat: not every row is of the form UserID::Movie"),
        ({"ratings.dat": "1::2::3::4::5\n"}, {}, r"ratings\.dat: its rows have more fields"),
        ({"ratings.dat": "1::2::3\n"}, {}, r"'timestamp' is declared int64"),
        ({"u.data": "1\t2\t\t4\n"}, {}, r"u\.data holds rows without a rating"),
        ({"u.data": "one\t2\t3\t4\n"}, {}, r"u\.data, line 1: column 'user_id' is declared int64"),
        ({"ratings.csv": "userId,movieId,rating\n1,2,3\n"}, {}, r"column\(s\) 'timestamp' not found"),
        ({"u.data": ""}, {}, r"u\.data: the file is empty"),
        ({"u.data": "1\t2\t3\t4\n"}, {}, r"no user has 3 interactions"),
        ({}, {"format": "ml-1b"}, r"format is 'ml-1b'. Known: auto, ml-100k, ml-1m, ml-latest"),
        ({"u.data": "1\t2\t3\t4\n"}, {"format": "ml-1m"}, r"ratings\.dat': no such file"),
        ({"ratings.csv": "userId,movieId,rating,timestamp\n1,2,3,4\n"}, {"demographics": True},
         r"ml-latest says nothing about its users"),
        ({"u.data": "1\t2\t3\t4\n", "u.item": "1|A|B||url|0|1\n"}, {"genres": True},
         r"u\.item: line 1 is not of the form id\|title\|dates\|URL\|19 flags: '1\|A\|B"),
        ({"ratings.dat": "1::2::3::4\n", "movies.dat": "2::A::Drama\nB\n"}, {"genres": True},
         r"movies\.dat: line 2 is not of the form id::title::genres: 'B'"),
        ({"ratings.dat": "1::2::3::4\n", "movies.dat": "x::A::B\n"}, {"genres": True}, r"movies\.dat: line 1 is not"),
        ({"ratings.dat": "1::2::3::4\n", "movies.dat": "2::A::Drama\n2::B::War\n"}, {"genres": True},
         r"movies\.dat: 1 duplicate key\(s\)"),
        ({"ratings.dat": "1::2::3::4\n", "movies.dat": ""}, {"genres": True}, r"movies\.dat: the file is empty"),
        ({"ratings.dat": "1::2::3::4\n", "users.dat": "1::F::1\n"}, {"demographics": True},
         r"users\.dat: line 1 is not of the form UserID::Gender::Age::Occupation::Zip-code"),
        ({"u.data": "1\t2\t3\t4\n", "u.user": "1|old|F|x|0\n"}, {"demographics": True}, r"u\.user: line 1 is not of"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_right_are_errors(tmp_path, files, given_settings, message):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message):
        build(tmp_path, **given_settings)


SMALL_FILES = [("ml-100k", "u.item"), ("ml-100k", "u.user"), ("ml-1m", "movies.dat"), ("ml-1m", "users.dat")]


@pytest.mark.parametrize(("kind", "name"), SMALL_FILES)
@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_file_of_movies_or_users_is_refused_or_read_line_by_line(tmp_path, folders, kind, name, data):
    text = b"".join((folders[kind] / name).read_bytes().splitlines(keepends=True)[:6])
    content = data.draw(damaged(text))
    (tmp_path / name).write_bytes(content)
    refused, found = "", None
    try:
        if name in ("u.item", "movies.dat"):
            found = read_genres("pandas", str(tmp_path), kind, None)
        else:
            found = read_demographics("pandas", str(tmp_path), kind)
    except DataError as error:
        refused = str(error)
    if found is None:
        assert name in refused
        return
    lines = [line for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n") if line.rstrip(b"\r")]
    assert len(found) == len(lines)
    assert str(found.dtypes.iloc[0]) == "int64"


def test_synthetic_ratings_hold_the_planted_preferences(folders, ratings):
    world = MovieWorld.make(80, 120, 7)
    place = {item: k for k, item in enumerate(world.item_ids.tolist())}
    users, items, stars, times = np.array(ratings).T
    first = pd.Series(times).groupby(users).transform("min").to_numpy()
    sitting = np.rint((times - first) / BETWEEN_SITTINGS).astype(int)
    assert set(sitting) == {0, 1, 2, 3}
    affinity = np.stack([world.affinity(slice(None), moment) for moment in world.shape.moments()])
    taken = affinity[sitting, users - 1, [place[item] for item in items]]
    assert np.corrcoef(taken, stars)[0, 1] > 0.65
    assert taken.mean() > affinity.mean() + 0.5  # what a user takes up suits the user
    last_taste = affinity[3, users - 1, [place[item] for item in items]]
    assert taken[sitting == 0].mean() > last_taste[sitting == 0].mean() + 0.1  # and the user's taste of that time
    assert 2.8 < stars.mean() < 4.2
    assert set(stars) == {1, 2, 3, 4, 5}
    assert np.bincount(users)[1:].min() >= 20
    assert len(set(zip(users, items, strict=True))) == len(ratings)


def test_synthetic_popularity_has_the_tail_and_users_the_activity_that_is_set():
    shape = MovieShape(zipf=1.2, taste=0.0, drift=0.0, sittings=1)
    world = MovieWorld.make(4000, 400, 3, shape)
    users, items = (np.concatenate(parts) for parts in list(zip(*world.blocks(), strict=True))[:2])
    ranked = np.sort(np.exp(world.popularity))[::-1]
    np.testing.assert_allclose(ranked, (10.0 + np.arange(400)) ** -1.2)
    counts = np.bincount(items, minlength=400)[np.argsort(-world.popularity)]
    tail = slice(40, 400)  # a user takes a movie once, which bends the head
    slope = np.polyfit(np.log(10.0 + np.arange(400))[tail], np.log(counts)[tail], 1)[0]
    assert slope == pytest.approx(-1.2, abs=0.1)
    beyond = np.log(np.bincount(users) - 20 + 0.5)
    assert beyond.std() == pytest.approx(1.0, abs=0.15)  # log-normal
    fixed = world.affinity(slice(0, 5), 0.0)
    np.testing.assert_array_equal(fixed, world.affinity(slice(0, 5), 1.0))


def ndcg_at_10(scores, seen, target):
    """Of one wanted item a user among all that the user has not seen, a row at a time."""
    found = []
    for row, known, wanted in zip(scores, seen, target, strict=True):
        candidates = [k for k in range(len(row)) if k == wanted or not known[k]]
        rank = sum(row[k] > row[wanted] for k in candidates)
        found.append(1 / np.log2(rank + 2) if rank < 10 else 0.0)
    return float(np.mean(found))


def test_popularity_alone_does_not_explain_synthetic_choices(tmp_path):
    write_movielens(tmp_path, "ml-100k", 600, 400)
    splits = build(tmp_path).splits
    items = np.unique(splits["train"]["item_id"])
    test = splits["test"][splits["test"]["item_id"].isin(items)]
    seen = np.zeros((601, len(items)), bool)
    seen[splits["train"]["user_id"], np.searchsorted(items, splits["train"]["item_id"])] = True
    users, wanted = test["user_id"].to_numpy(), np.searchsorted(items, test["item_id"])
    counts = seen.sum(0)
    together = seen.T.astype(float) @ seen
    cosines = together / np.sqrt(np.outer(counts, counts))
    np.fill_diagonal(cosines, 0)
    popular = ndcg_at_10(np.tile(counts.astype(float), (len(users), 1)), seen[users], wanted)
    neighbours = ndcg_at_10(seen[users] @ cosines, seen[users], wanted)
    assert 1.4 * popular < neighbours


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"zipf": -0.1}, "zipf must be a number of at least 0, found -0.1"),
        ({"taste": float("nan")}, "taste must be a number of at least 0, found nan"),
        ({"drift": 91.0}, "drift must be a number of at least 0 and at most 90, found 91"),
        ({"sittings": 0}, "sittings must be a whole number from 1, found 0"),
    ],
)
def test_shapes_that_cannot_be_are_refused(chosen, message):
    with pytest.raises(DataError, match=message):
        MovieShape(**chosen)


def test_the_command_takes_the_shape_and_refuses_it_for_frappe(tmp_path):
    main(["--format", "ml-1m", "--users", "5", "--items", "60", "--out", str(tmp_path), "--drift", "0", "--zipf", "0"])
    write_movielens(tmp_path / "same", "ml-1m", 5, 60, shape=MovieShape(drift=0.0, zipf=0.0))
    assert (tmp_path / "ratings.dat").read_bytes() == (tmp_path / "same" / "ratings.dat").read_bytes()
    with pytest.raises(DataError, match="of the MovieLens formats, not of frappe"):
        main(["--format", "frappe", "--users", "5", "--out", str(tmp_path), "--zipf", "2"])


def test_the_command_writes_the_same_bytes_again(tmp_path, capsys):
    for folder in ("a", "b"):
        main(["--format", "ml-1m", "--users", "25", "--items", "60", "--out", str(tmp_path / folder)])
    assert "interactions of 25 users in the format ml-1m" in capsys.readouterr().out
    for name in ("ratings.dat", "movies.dat", "users.dat"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert set(build(tmp_path / "a").splits["test"]["user_id"]) == set(range(1, 26))


@pytest.mark.parametrize(("kind", "users", "message"), [("ml-5", 10, "unknown format 'ml-5'"), ("ml-1m", 0, "1 user")])
def test_synthetic_data_of_no_size_or_format_are_refused(tmp_path, kind, users, message):
    with pytest.raises(DataError, match=message):
        write_movielens(tmp_path, kind, users)
