"""Whole runs whose rows are all positives: negatives in training and evaluation, ranking, resuming, what is refused."""

import json
import re
from html import unescape

import numpy as np
import pandas as pd
import pytest
import torch

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.schema import Column, Entity, Schema, Target
from gigabatch.models.inputs import EntityColumns, ModelInputs
from gigabatch.models.losses import TargetLoss
from gigabatch.models.recommenders.ncf import NCF, NCFSettings
from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.config.config import ConfigError, NegativeSettings, TrainSettings, load_config, parse_config
from gigabatch.pipeline.evaluation.rank_evaluate import RankingError
from gigabatch.pipeline.stages.score import evaluate
from gigabatch.pipeline.stages.stages import Pipeline, evaluation_data, require_questions
from gigabatch.pipeline.training.negatives import implicit_batches, require_positives
from gigabatch.pipeline.training.train import model_inputs, train_model

USERS, ITEMS = 120, 40
FEATURES = {"path": "t.csv", "categorical": ["item"], "targets": {"chosen": {"task": "binary"}}}


def write_clicks(path) -> None:
    """Twelve clicks a user: users like the items of their own parity, on weekends the others."""
    random = np.random.default_rng(0)
    rows = []
    for user in range(USERS):
        for moment in range(12):
            weekend = int(random.random() < 0.15)
            item = 2 * random.integers(0, ITEMS // 2) + ((user + weekend) % 2)
            rows.append({"user": f"u{user}", "item": f"i{item}", "weekend": str(weekend), "at": 100 * moment + user})
    pd.DataFrame(rows).to_csv(path, index=False)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with clicks.csv and run.yaml."""
    folder = tmp_path_factory.mktemp("clicks")
    write_clicks(folder / "clicks.csv")
    config = {
        "name": "clicks",
        "recipe": "interactions",
        "artifacts": str(folder / "artifacts"),
        "runs": str(folder / "runs"),
        "features": {"path": str(folder / "clicks.csv"), "time": "at", "contexts": ["weekend"]},
        "model": {"kind": "ncf", "gmf_dim": 4, "mlp_dim": 8, "layers": [16, 8]},
        "train": {
            "negatives": {"per_positive": 4}, "epochs": 30, "batch_size": 64, "optimizer": "adamw", "lr_max": 0.02,
        },
        "evaluate": {"importance": False, "ranking": {"k": [5], "negatives": 19}},
    }  # fmt: skip
    (folder / "run.yaml").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def run(home):
    return Pipeline.from_config(home / "run.yaml").train()


def test_a_run_learns_from_positives_alone(run):
    """A rule that half of the items fit: chance of a hit among 20 at depth 5 is .25, and the best there is is .5."""
    summary = run.summary
    assert summary["auc"] > 0.65
    assert [item["name"] for item in summary["baselines"]["found"]] == ["popularity"]
    assert [text.partition(" (")[0] for text in summary["baselines"]["left_out"]] == [
        "the linear model",
        "the boosted trees",
    ]
    assert summary["ranking"]["rows"] == USERS
    assert summary["ranking"]["sampled"]["candidates"] == 20
    assert summary["ranking"]["sampled"]["hr@5"] > 0.38
    assert summary["ranking"]["catalogue"]["hr@5"] > 5 / ITEMS
    assert "Ranking of the test split" in (run.path / "report.html").read_text()


def test_evaluating_again_compares_and_ranks_as_the_run_did(home, run, tmp_path):
    """H3: rows were counted with their negatives, and neither baseline nor ranking was told."""
    assert main(["evaluate", "--config", str(home / "run.yaml"), "--out", str(tmp_path)]) == 0
    found, summary = json.loads((tmp_path / "summary.json").read_text()), run.summary
    assert found["rows"] == summary["rows_by_split"]["test"] == USERS
    beside = [found["ranking"]["baselines"], summary["ranking"]["baselines"]]
    assert all(item.pop("seconds") > 0 for part in beside for item in part["found"])
    assert found["ranking"] == summary["ranking"]
    assert found["warnings"] == summary["warnings"]
    assert found["targets"] == summary["targets"]["test"]
    (own,), (other,) = found["baselines"]["found"], summary["baselines"]["found"]
    assert (own["name"], own["metrics"]["test"]) == ("popularity", other["metrics"]["test"])
    assert own["differences"] == other["differences"]
    assert "Ranking of the test split" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("today", ["{per_positive: 1, kind: popularity}", "null"])
def test_a_run_is_evaluated_among_the_negatives_that_it_was_trained_with(home, run, today):
    """Its probabilities are those of one positive among four others, whatever today's configuration draws."""
    asked = [f"train.negatives={today}", "evaluate.ranking=null", "evaluate.baselines=[]"]
    again = evaluate(home / "run.yaml", *asked, run=run.path, out=home / "again")
    assert again["targets"] == run.summary["targets"]["test"]


def test_the_rows_of_the_importance_are_those_that_were_shuffled(home):
    """Of 103 that are asked for, whole groups of a positive and its four negatives: 100."""
    again = Pipeline.from_config(home / "run.yaml", "evaluate.importance=true", "evaluate.importance_rows=103").train()
    assert again.summary["importance_sample"]["rows"] == 100
    assert "over 100 rows" in (again.path / "report.html").read_text()


def test_the_evaluation_table_has_each_positive_and_its_negatives(home):
    encoded = Pipeline.from_config(home / "run.yaml").features().encode()
    evaluated, table = encoded.evaluation_table("test"), encoded.table("test")
    assert len(evaluated) == 5 * len(table)
    rows, positives = evaluated.unpack(evaluated.words), table.unpack(table.words)
    assert torch.equal(rows.ids[::5], positives.ids)
    assert rows.targets[0].tolist() == [1.0, 0, 0, 0, 0] * len(table)
    inputs = encoded.preprocessor.schema.names("categorical")
    user, item = inputs.index("user"), inputs.index("item")
    known = {tuple(row) for split in ("train", "valid", "test") for row in encoded.table(split).words[
        :, [user, item]].tolist()}  # fmt: skip
    drawn = rows.ids[rows.targets[0] == 0][:, [user, item]].tolist()
    assert not known & {tuple(pair) for pair in drawn}
    assert torch.equal(encoded.evaluation_table("test").words, evaluated.words)


def dense(folder, users, everything, kind, most=None, negatives=3):
    """Users with six of 12 items each, one (`most`) with ten and users with all; trained."""
    random = np.random.default_rng(1)
    pairs = [(user, item) for user in users for item in random.permutation(12)[:6]]
    pairs += [(user, item) for user in everything for item in range(12)]
    pairs += [(most, item) for item in range(10) if most]
    rows = pd.DataFrame(pairs, columns=["user", "item"]).astype({"item": str})
    rows["at"] = random.permutation(len(rows))
    rows.to_csv(folder / "dense.csv", index=False)
    config = {"name": "dense", "recipe": "interactions", "features": {"path": str(folder / "dense.csv"), "time": "at"},
              "artifacts": str(folder / "artifacts"), "runs": str(folder / "runs"), "model": {"kind": kind},
              "evaluate": {"ranking": {"k": [3], "negatives": negatives}}}  # fmt: skip
    steps = {"epochs": 2, "batch_size": 16} if kind == "mf" else {}
    config["train"] = {"negatives": {"per_positive": 2, "kind": "popularity" if kind == "mf" else "uniform"}} | steps
    return Pipeline.from_config(config).train()


@pytest.mark.parametrize("kind", ["mf", "popularity", "ease"])
@pytest.mark.parametrize("users", [[f"u{number}" for number in range(20)], []], ids=["some", "none"])
def test_users_who_have_every_item_are_named_and_trained_on(tmp_path, caplog, kind, users):
    run = dense(tmp_path, users, ["power", "robot"], kind)
    assert 0 <= run.summary["auc"] <= 1
    told = [text for text in caplog.messages if "have each of the 12 items" in text]
    assert ["In evaluation" in text for text in told] == [True]  # it came for each split that negatives were drawn for
    told += [text for text in caplog.messages if "to rank theirs among" in text]
    assert len(told) == 2
    assert all(re.search(r"\d+ of column 'user' \(.*'power'.*\)", text) and "'robot'" in text for text in told)


def test_a_user_who_leaves_too_few_items_for_the_ranking_is_named_and_left_out(tmp_path, caplog):
    """The run ended with an error, after its training."""
    run = dense(tmp_path, [f"u{number}" for number in range(20)], [], "popularity", most="most")
    (told,) = [text for text in caplog.messages if "evaluate.ranking.negatives" in text]
    assert "1 of column 'user' ('most') leave fewer than 3 items" in told
    left_out, asked = map(int, re.search(r"(\d+) of (\d+) questions of the test split are left out", told).groups())
    assert (left_out > 0, asked) == (True, run.summary["rows_by_split"]["test"])
    assert run.summary["ranking"]["rows"] == asked - left_out


def test_a_ranking_that_no_user_leaves_items_for_is_refused_before_the_training(tmp_path):
    with pytest.raises(RankingError, match=r"leave fewer than 9 of 12 items.*evaluate\.ranking\.negatives"):
        dense(tmp_path, [f"u{number}" for number in range(20)], [], "mf", negatives=9)
    assert not list(tmp_path.glob("artifacts/train/*/manifest.json"))


class Unread:
    """A table of so many rows, which must not be read."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return self.rows

    @property
    def words(self):
        raise AssertionError("read")


def test_no_train_row_is_read_where_test_has_users_of_few_rows_on_average(home):
    """Of so many users one has at most the mean of all rows, and may have 40 - 19 items."""
    encoded = Pipeline.from_config(home / "run.yaml").features().encode()
    given, settings = encoded.preprocessor, encoded.features.pipeline.config.evaluate.ranking
    others = {"valid": encoded.table("valid"), "test": encoded.table("test")}
    require_questions(given, {"train": Unread(1_000)} | others, model_inputs(given), "cpu", settings)
    with pytest.raises(AssertionError, match="read"):
        require_questions(given, {"train": Unread(100_000)} | others, model_inputs(given), "cpu", settings)


class Crash(Exception):
    pass


def test_a_killed_training_draws_the_same_negatives_when_it_goes_on(home, tmp_path):
    encoded = Pipeline.from_config(home / "run.yaml").features().encode()
    train, valid, preprocessor = encoded.table("train"), encoded.evaluation_table("valid"), encoded.preprocessor
    sizes = tuple(column.num_ids for column in train.schema.ids)
    names = [column.name for column in train.schema.ids]
    user, item = names.index("user"), names.index("item")
    inputs = ModelInputs(sizes, 0, 1, user=EntityColumns(user, (user,)), item=EntityColumns(item, (item,)))
    settings = TrainSettings(
        epochs=2, batch_size=128, lr_max=0.01, optimizer="lamb", negatives={"per_positive": 3},
        checkpoint_every_steps=2,
    )  # fmt: skip

    def fit(folder, after_step=lambda step: None):
        folder.mkdir(exist_ok=True)
        torch.manual_seed(1)
        model = NCF(inputs, NCFSettings(gmf_dim=4, mlp_dim=8, layers=(8,)))
        negatives = implicit_batches(preprocessor, inputs, train, settings.negatives, 1, "cpu")
        return train_model(
            model, train, valid, TargetLoss([("binary", 1)]), settings, seed=1, device="cpu", folder=folder,
            after_step=after_step, negatives=negatives,
        ).model.state_dict()  # fmt: skip

    def crash(step):
        if step == 11:
            raise Crash

    whole = fit(tmp_path / "whole")
    with pytest.raises(Crash):
        fit(tmp_path / "killed", crash)
    resumed = fit(tmp_path / "killed")
    assert [name for name in whole if not torch.equal(whole[name], resumed[name])] == []


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["train.negatives.per_positive=0"], "train.negatives.per_positive"),
        (["train.negatives.kind=hard"], "train.negatives.kind"),
        (["model.kind=transformer"], "model.kind: unknown model 'transformer'. Known: tabular, lr"),
        (["model.depth=3"], "unknown key 'model.depth'"),
        (["model.context=everywhere"], "unknown place of the context"),
        (["evaluate.ranking.k=[0]"], "whole numbers from 1"),
    ],
)
def test_settings_are_refused_before_any_work(home, overrides, message):
    with pytest.raises(ConfigError, match=message.replace("[", r"\[")):
        load_config(home / "run.yaml", overrides)


def test_columns_of_an_item_that_differ_from_row_to_row_are_named(home, caplog):
    encoded = Pipeline.from_config(home / "run.yaml").features().encode()
    train, names = encoded.table("train"), [column.name for column in encoded.table("train").schema.ids]
    user, item, weekend = (names.index(name) for name in ("user", "item", "weekend"))
    sizes = tuple(column.num_ids for column in train.schema.ids)
    said = []
    for columns in ((item,), (item, weekend)):
        inputs = ModelInputs(sizes, 0, 1, user=EntityColumns(user, (user,)), item=EntityColumns(item, columns))
        caplog.clear()
        implicit_batches(encoded.preprocessor, inputs, train, NegativeSettings(per_positive=3), 1, "cpu")
        said.append([record.getMessage() for record in caplog.records if record.levelname == "WARNING"])
    assert said[0] == []
    (text,) = said[1]
    assert text.startswith("train.negatives: of an item, weekend differ(s) from row to row.")


def test_negatives_of_rows_without_an_item_are_refused(home, tmp_path, capsys):
    """A table without entities, and one whose target is no binary one."""
    frame = pd.DataFrame({"a": ["x", "y"] * 50, "label": [0, 1] * 50})
    frame.to_csv(tmp_path / "t.csv", index=False)
    config = {
        "name": "t", "recipe": "table", "artifacts": str(tmp_path / "a"), "runs": str(tmp_path / "r"),
        "features": {"path": str(tmp_path / "t.csv"), "categorical": ["a"], "targets": {"label": {"task": "binary"}}},
        "train": {"negatives": {}, "epochs": 1, "batch_size": 16},
    }  # fmt: skip
    (tmp_path / "t.yaml").write_text(json.dumps(config))
    assert main(["train", "--config", str(tmp_path / "t.yaml")]) == 2
    assert "train.negatives: the schema names no item to draw" in capsys.readouterr().err


def test_rows_that_are_no_positives_are_refused(home, tmp_path, capsys):
    """Drawing would give every row the target 1, also one that its user did not like."""
    rows = pd.read_csv(home / "clicks.csv")
    rows.assign(stars=1 + np.arange(len(rows)) % 5).to_csv(tmp_path / "rated.csv", index=False)
    rated = f"features={{path: {tmp_path / 'rated.csv'}, time: at, rating: stars, task: rating}}"
    assert main(["train", "--config", str(home / "run.yaml"), rated, "evaluate.ranking=null"]) == 2
    assert "train.negatives: every row has to be a positive" in capsys.readouterr().err.splitlines()[-1]


def test_rows_without_a_user_have_nothing_to_leave_out():
    schema = Schema(
        (Column("item", "categorical", "string"), Column("chosen", "target", "float32")),
        (Target("chosen", "binary"),),
        (Entity("item", "item", ("item",)),),
    )
    config = parse_config({"name": "x", "recipe": "table", "features": FEATURES, "train": {"negatives": {}}})
    with pytest.raises(ConfigError, match=r"names no user .* set train.negatives.exclude_known=false"):
        require_positives(config, Preprocessor(schema, config.preprocess))
    free = config.model_copy(
        update={"train": config.train.model_copy(update={"negatives": NegativeSettings(exclude_known=False)})}
    )
    require_positives(free, Preprocessor(schema, free.preprocess))


def test_users_that_train_does_not_have_are_evaluated_as_many(home, tmp_path):
    """By time, users of valid and test are new: all have the id of the unseen user, who has all items together."""
    random = np.random.default_rng(4)
    rows = [{"user": f"u{n // 20}", "item": f"i{random.integers(30)}", "at": n} for n in range(2000)]
    pd.DataFrame(rows).to_csv(tmp_path / "rows.csv", index=False)
    features = f"features={{path: {tmp_path / 'rows.csv'}, time: at, split_by: time}}"
    encoded = Pipeline.from_config(home / "run.yaml", features).features().encode()
    names = [column.name for column in encoded.table("test").schema.ids]
    evaluated = encoded.evaluation_table("test").words
    assert set(evaluated[:, names.index("user")].tolist()) == {2}
    items = evaluated[:, names.index("item")].view(-1, 5)
    assert not (items[:, 1:] == items[:, :1]).any()
    assert set(items[:, 1:].flatten().tolist()) == set(range(3, 33))


@pytest.mark.parametrize("least", [1, 25])
def test_rows_of_users_that_the_vocabulary_does_not_have_are_counted_in_one_warning(home, tmp_path, caplog, least):
    """The items of their other rows cannot be left out of what is drawn and ranked. It said that train lacks them,
    which is not so of those rarer than `min_count`, and said it of each split and of the ranking."""
    random = np.random.default_rng(5)
    users = [f"u{n // 30 if n % 3 else n % 7}" for n in range(2000)]
    rows = [{"user": user, "item": f"i{random.integers(300)}", "at": n} for n, user in enumerate(users)]
    pd.DataFrame(rows).to_csv(tmp_path / "rows.csv", index=False)
    features = f"features={{path: {tmp_path / 'rows.csv'}, time: at, split_by: time}}"
    made = Pipeline.from_config(
        home / "run.yaml", features, f"preprocess.columns={{user: {{min_count: {least}}}}}"
    ).features()
    train, test = (pd.concat([pd.read_parquet(part) for part in made.parts(split)]).user for split in ("train", "test"))
    counts = train.value_counts()
    new = int((~test.isin(counts.index[counts >= least])).sum())
    assert 0 < new < len(test)
    encoded = made.encode()
    tables = {split: encoded.table(split) for split in ("train", "valid", "test")}
    evaluation_data(made, encoded.preprocessor, tables, ("valid", "test"), "test")
    found = [record.getMessage() for record in caplog.records if "share one id" in record.getMessage()]
    counted = f"{new} of {len(test)} positives of the test split are of users whose id the vocabulary does not have"
    (told,) = found
    assert told.startswith(f"train.negatives and evaluate.ranking: {counted}: not in train, or rarer than")
    assert told.endswith("and recall@k counts each of them as a user.")


def test_a_notebook_shows_what_a_terminal_shows(run, capsys):
    """It lacked the ranking, and what does not apply."""
    run.show()
    printed, page = capsys.readouterr().out, run._repr_html_()
    titles = [unescape(title) for title in re.findall(r"<caption[^>]*>(.*?)</caption>", page)]
    assert [title.partition(" ")[0] for title in titles] == ["Run", "Baselines", "Ranking", "Stages"]
    assert all(title in printed for title in titles)
    lines = [unescape(line) for line in re.findall(r"<p>(.*?)</p>", page)]
    assert sum(line.startswith("Does not apply: the ") for line in lines) == 2
    assert all(line in printed for line in lines)
