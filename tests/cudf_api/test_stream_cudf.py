"""What runs part by part, on frames that refuse what cuDF lacks."""

import pandas as pd

from gigabatch.features.recipes.trivago.recipe import TrivagoRecipe, TrivagoSettings, run_here
from gigabatch.features.synthetic.trivago import write_synthetic_log
from gigabatch.pipeline.stages.encode import GroupNumbers
from gigabatch.pipeline.store import row_history
from gigabatch.pipeline.store.artifacts import ArtifactStore
from gigabatch.pipeline.store.parsed_files import ParsedFiles
from gigabatch.pipeline.store.row_history import RowHistory
from tests.cudf_api.checked import CheckedFrame


def test_a_log_in_chunks_uses_only_what_cudf_has(tmp_path):
    write_synthetic_log(tmp_path, 3000)
    (tmp_path / "out").mkdir()
    recipe = TrivagoRecipe(TrivagoSettings(path=str(tmp_path)))
    found = recipe.write_parts("pandas", tmp_path / "out", 2_000, run_here, 100_000)
    assert found.rows["train"] > 1_000
    assert len(list((tmp_path / "out" / "train").iterdir())) > 3


def test_a_night_of_a_log_uses_only_what_cudf_has(tmp_path, monkeypatch):
    monkeypatch.setattr(row_history, "source_hash", lambda modules: "these")
    write_synthetic_log(tmp_path, 3000)
    log = pd.read_csv(tmp_path / "train.csv", dtype="str", keep_default_na=False)
    late = log["timestamp"].astype("int64") > log["timestamp"].astype("int64").quantile(0.8)
    store = ArtifactStore(tmp_path / "artifacts")
    for number, rows in enumerate((log[~late], log[late])):
        rows.to_csv(tmp_path / f"day-{number}.csv", index=False)
        recipe = TrivagoRecipe(TrivagoSettings(path=str(tmp_path), train="day-*.csv"))
        recipe.cache = files = ParsedFiles(store, "pandas")
        recipe.history = RowHistory(store, files, {"recipe": "trivago"})
        (tmp_path / f"out-{number}").mkdir()
        found = recipe.write_parts("pandas", tmp_path / f"out-{number}", 2_000, run_here, 100_000)
    assert found.rows["train"] > 1_000
    assert (recipe.history.told["note"], recipe.history.told["reused"] > 1_000) == (None, True)


def test_numbering_groups_uses_only_what_cudf_has():
    numbers = GroupNumbers()
    parts = [CheckedFrame(pd.DataFrame({"session": names})) for names in (["b", "a"], ["a", "c", "b"])]
    assert [numbers.number(part["session"]).tolist() for part in parts] == [[0, 1], [1, 2, 0]]
