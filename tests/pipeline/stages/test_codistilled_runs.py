"""Whole runs of groups that codistil: two at once on one machine, their rows, runs and keys."""

import numpy as np
import pytest
import torch

from gigabatch.pipeline.config.config import ConfigError
from gigabatch.pipeline.nightly.start import tonight

SETTINGS = {"train.codistill.groups": 2, "train.codistill.burn_in_steps": 2, "train.codistill.every_steps": 2}
WORK = """
import sys
Pipeline.from_config(config, {settings!r}, "train.codistill.group=" + {group!r}).train()
"""


def test_two_groups_of_one_configuration_run_at_once(tiny):
    started = [tiny.start(WORK.format(settings=SETTINGS, group=str(group))) for group in (0, 1)]
    for process in started:
        _, err = process.communicate(timeout=500)
        assert process.returncode == 0, err
    assert [len(tiny.artifacts(stage)) for stage in ("features", "encode", "train")] == [1, 1, 2]
    assert tiny.hidden() == []

    encoded = [tiny.pipeline(SETTINGS, f"train.codistill.group={g}").features().encode() for g in (0, 1)]
    zero, one = (found.chosen_rows for found in encoded)
    assert np.array_equal(np.sort(np.concatenate([zero, one])), np.arange(2400))
    assert [found.num_trained for found in encoded] == [len(zero), len(one)]
    assert len({found.train_key for found in encoded}) == 2
    assert encoded[0].seed == encoded[0].config.seed != encoded[1].seed
    elsewhere = tiny.pipeline(SETTINGS, "train.codistill.folder=/tmp/elsewhere").features().encode()
    assert elsewhere.train_key == encoded[0].train_key
    assert torch.equal(encoded[1]._trained_rows().words, encoded[1].table("train").words[torch.from_numpy(one)])

    runs = [found.train() for found in encoded]
    for group, (run, rows) in enumerate(zip(runs, (zero, one), strict=True)):
        assert run.skipped == ("features", "encode", "train", "evaluate")
        (note,) = (text for text in run.summary["notes"] if text.startswith("Codistilled"))
        assert f"group {group} of 2, on its own {len(rows):,} rows" in note
        assert run.summary["trained"]["rows"] <= len(rows) * run.summary["config"]["train"]["epochs"]
        points = [point for point in run.curve if "peers" in point]
        assert points
        assert all(point["peers"].keys() == {str(1 - group)} for point in points)
        assert sum(sum(point["sent_bytes"].values()) for point in points) > 0
        assert sum(run.bundle().info["train_times"]["rows"]) == len(rows)
    # At least the one that was later has seen the other.
    assert any(run.curve[-1]["peers"][str(1 - group)] for group, run in enumerate(runs))
    assert runs[0].path != runs[1].path


def test_a_group_may_train_on_all_rows(tiny, caplog):
    encoded = tiny.pipeline(SETTINGS, "train.codistill.rows=all").features().encode()
    assert encoded.chosen_rows is None
    assert encoded.num_trained == 2400
    assert encoded.train_key != tiny.pipeline(SETTINGS).features().encode().train_key
    run = encoded.train()
    (note,) = (text for text in run.summary["notes"] if text.startswith("Codistilled"))
    assert "group 0 of 2, on all 2,400 rows" in note
    assert "group 1 has never come" in caplog.text
    assert sum(run.bundle().info["train_times"]["rows"]) == 2400


def test_another_learning_rate_is_another_team(tiny):
    """A second experiment learnt from the weights that the first had left in the folder."""
    teams = [
        tiny.pipeline(SETTINGS, *more).features().encode()._codistillation()
        for more in ([], ["train.codistill.group=1"], ["train.lr_max=0.5"], ["train.checkpoint_every_steps=7"])
    ]
    assert len({found.folder for found in teams}) == 2
    assert teams[0].folder == teams[1].folder == teams[3].folder


def test_a_night_trains_alone(tiny):
    config = tiny.pipeline(SETTINGS).config
    with pytest.raises(ConfigError, match=r"Set train\.codistill=null"):
        tonight(config, None, None, [])
