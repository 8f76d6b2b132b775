"""trivago, RecSys Challenge 2019: which hotel of the list shown will be clicked?

Reads the official files (train.csv, test.csv, item_metadata.csv) or a synthetic log in their format
(`trivago_synthetic`). One row is one (clickout, candidate) pair; `trivago_features` states the time discipline.

Splits are by session, in time: a session belongs to the split in which its last log row falls, so that one which
crosses a boundary goes to the later split. Clickouts without a reference form the further split `score`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from features.errors import DataError
from features.frame import engine_of, load_engine
from features.recipes.base import FeatureTables, Recipe, SplitFractions
from features.recipes.trivago_features import CATEGORICAL, CLICKOUT, CONTINUOUS, PairBuilder, prepare_log
from features.schema import Column, Schema, Target
from features.sources import cast, expand, read_files

LOG = {
    "user_id": "string", "session_id": "string", "timestamp": "int64", "step": "int64", "action_type": "string",
    "reference": "string", "platform": "string", "city": "string", "device": "string", "current_filters": "string",
    "impressions": "string", "prices": "string",
}  # fmt: skip
METADATA = {"item_id": "int64", "properties": "string"}


@dataclass(frozen=True)
class TrivagoSettings:
    """path: folder or URL of the files. train, test, item_metadata: their names or globs; item_metadata may be null.

    max_properties: at most so many item properties become columns, the most frequent. num_folds: of sessions, for the
    out-of-fold target means. ctr_smoothing, target_smoothing: pairs that the prior weighs as much as, in the
    click-through of an item and in the target means of filters, city, device and user. split: shares of clickouts.
    """

    path: str = "data/trivago"
    train: str = "train.csv"
    test: str = "test.csv"
    item_metadata: str | None = "item_metadata.csv"
    max_properties: int = 200
    num_folds: int = 5
    ctr_smoothing: float = 20.0
    target_smoothing: float = 400.0
    split: SplitFractions = field(default_factory=SplitFractions)

    def __post_init__(self) -> None:
        if self.num_folds < 2:
            raise DataError(f"trivago: num_folds must be at least 2, found {self.num_folds}.")


class TrivagoRecipe(Recipe):
    """Splits train, valid, test and score; see the module's docstring."""

    Settings = TrivagoSettings
    settings: TrivagoSettings

    def _pattern(self, name: str) -> str:
        return f"{self.settings.path.rstrip('/')}/{getattr(self.settings, name)}"

    def inputs(self) -> list[str]:
        names = ["train", "test"] + (["item_metadata"] if self.settings.item_metadata else [])
        return [path for name in names for path in expand(self._pattern(name))]

    def build(self, engine: str) -> FeatureTables:
        settings = self.settings
        log = prepare_log(self.read_log(engine))
        builder = PairBuilder(
            self.read_metadata(engine),
            settings.max_properties,
            settings.num_folds,
            settings.ctr_smoothing,
            settings.target_smoothing,
        )
        self.report("read")
        pairs = builder.build(log)
        self.report("pairs")
        schema = trivago_schema(builder.flag_names)
        splits = split_by_session(pairs, log, settings.split)
        return FeatureTables(
            {
                name: cast(frame[schema.names()], schema.dtypes(), name).reset_index(drop=True)
                for name, frame in splits.items()
            },
            schema,
            self._notes(log, builder, splits),
        )

    def submission(self, rows: Any, predictions: Any) -> Any:
        """The challenge's format, one line a clickout in order of user, session and step: user_id, session_id,
        timestamp, step and item_recommendations, its items by descending score, parted by spaces (a pandas frame)."""
        names = ["clickout", "user_id", "session_id", "timestamp", "step", "candidate_order", "item_id"]
        ranked = rows[names].reset_index(drop=True)
        ranked["score"] = predictions["target"].reset_index(drop=True)
        # Equal scores keep the shown order.
        ranked = ranked.sort_values(["clickout", "score", "candidate_order"], ascending=[True, False, True])
        ranked = engine_of(ranked).to_pandas(ranked)
        items = ranked["item_id"].astype("str").groupby(ranked["clickout"]).agg(" ".join)
        lines = ranked[names[:5]].drop_duplicates("clickout").set_index("clickout")
        lines["item_recommendations"] = items
        return lines.sort_values(["user_id", "session_id", "step"]).reset_index(drop=True)

    def read_log(self, engine: str) -> Any:
        """train and test one after the other, every column of the official files."""
        parts = [read_files(engine, self._pattern(name), LOG, null_values=("",)) for name in ("train", "test")]
        return load_engine(engine).frames.concat(parts, ignore_index=True)

    def read_metadata(self, engine: str) -> Any | None:
        """item_id (unique) and properties, or None where the settings name no such file."""
        if not self.settings.item_metadata:
            return None
        metadata = read_files(engine, self._pattern("item_metadata"), METADATA, null_values=("",))
        twice = metadata["item_id"].duplicated()
        if bool(twice.any()):
            example = metadata["item_id"][twice].iloc[0]
            raise DataError(f"item metadata: {int(twice.sum())} item_id(s) appear twice, for example {example}.")
        return metadata

    def _notes(self, log: Any, builder: PairBuilder, splits: dict[str, Any]) -> tuple[str, ...]:
        clickouts = int((log["action_type"] == CLICKOUT).sum())
        sizes = ", ".join(f"{name} {len(frame):,}" for name, frame in splits.items())
        return (
            f"{clickouts:,} clickouts in {len(log):,} log rows; pairs: {sizes}.",
            f"{builder.not_in_list:,} clickouts left out because their reference is not among their impressions, "
            f"{builder.without_list:,} because they have no impressions; their rows still count in the history of "
            "others.",
        )


def split_by_session(pairs: Any, log: Any, fractions: SplitFractions) -> dict[str, Any]:
    """train, valid, test and score of whole sessions.

    The boundaries are the times by which `fractions` of the labelled clickouts had happened. A session whose last log
    row lies after a boundary belongs to the later split, wherever it began. Clickouts without a reference are `score`.
    """
    engine = engine_of(pairs)
    labelled = pairs["target"].notna()
    times = pairs[labelled & (pairs["candidate_order"] == 1)]["timestamp"].sort_values().reset_index(drop=True)
    if len(times) == 0:
        raise DataError("trivago: no clickout has a reference among its impressions, so there is nothing to learn.")
    last = log.groupby("session").agg({"timestamp": "max"}).sort_index()
    end = engine.series(engine.array(last["timestamp"])[engine.array(pairs["session"])], pairs)
    first = times.iloc[max(int(len(times) * fractions.train) - 1, 0)]
    second = times.iloc[max(int(len(times) * (fractions.train + fractions.valid)) - 1, 0)]
    return {
        "train": pairs[labelled & (end <= first)],
        "valid": pairs[labelled & (end > first) & (end <= second)],
        "test": pairs[labelled & (end > second)],
        "score": pairs[~labelled],
    }


def trivago_schema(flag_names: tuple[str, ...]) -> Schema:
    """Roles and types of the pair table; `clickout` gathers the candidates of one list."""
    columns = [Column(name, "categorical", dtype) for name, dtype in CATEGORICAL.items()]
    columns += [Column(name, "continuous", "float32") for name in (*CONTINUOUS, *flag_names)]
    columns += [
        Column("target", "target", "float32"),
        Column("clickout", "group", "int64"),
        Column("timestamp", "time", "int64"),
        Column("session_id", "key", "string"),
        Column("step", "key", "int64"),
    ]
    return Schema(tuple(columns), (Target("target", "binary"),))
