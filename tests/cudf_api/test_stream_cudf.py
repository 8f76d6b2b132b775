"""What runs part by part, on frames that refuse what cuDF lacks."""

import pandas as pd

from gigabatch.features.recipes.trivago.recipe import TrivagoRecipe, TrivagoSettings, run_here
from gigabatch.features.synthetic.trivago import write_synthetic_log
from gigabatch.pipeline.stages.encode import GroupNumbers
from tests.cudf_api.checked import CheckedFrame


def test_a_log_in_chunks_uses_only_what_cudf_has(tmp_path):
    write_synthetic_log(tmp_path, 3000)
    (tmp_path / "out").mkdir()
    recipe = TrivagoRecipe(TrivagoSettings(path=str(tmp_path)))
    found = recipe.write_parts("pandas", tmp_path / "out", 2_000, run_here, 100_000)
    assert found.rows["train"] > 1_000
    assert len(list((tmp_path / "out" / "train").iterdir())) > 3


def test_numbering_groups_uses_only_what_cudf_has():
    numbers = GroupNumbers()
    parts = [CheckedFrame(pd.DataFrame({"session": names})) for names in (["b", "a"], ["a", "c", "b"])]
    assert [numbers.number(part["session"]).tolist() for part in parts] == [[0, 1], [1, 2, 0]]
