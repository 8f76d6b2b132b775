"""An experiment: samples of a run's tables, trainings that leave nothing behind and say nothing."""

import logging

import pytest
import torch

from gigabatch.pipeline.lab.experiment import Enough, Experiment

SMALL = ("train.batch_size=32", "train.epochs=1")


def test_a_sample_of_the_rows_is_used_where_there_are_more(trained):
    found = Experiment.of_run(trained[0].config, SMALL, 500)
    assert (len(found.train), found.num_train_rows) == (500, 2400)
    whole = Experiment.of_run(trained[0].config, SMALL)
    assert len(whole.train) == 2400
    rows = {tuple(row) for row in whole.train.words.tolist()}
    assert all(tuple(row) in rows for row in found.train.words.tolist())


def test_a_sample_of_groups_has_them_whole(trained):
    grouped = Experiment.of_run(trained[0].config, [*SMALL, "features.group=true"], 300)
    whole = Experiment.of_run(trained[0].config, [*SMALL, "features.group=true"])
    sizes = whole.train.words[:, -1].bincount()
    found = grouped.train.words[:, -1].bincount(minlength=len(sizes))
    assert 0 < len(grouped.train) <= 310
    assert set((found > 0).nonzero()[:, 0].tolist()) == set((found == sizes).nonzero()[:, 0].tolist())


def test_batches_go_on_from_epoch_to_epoch_in_another_order(trained):
    experiment = Experiment.of_run(trained[0].config, SMALL)
    batches = experiment.batches(1200, seed=3)
    first, second = ([next(batches).batch.floats for _ in range(2)] for _ in range(2))
    assert not torch.equal(torch.cat(first), torch.cat(second))
    sums = [torch.cat(epoch).double().sum(0) for epoch in (first, second)]
    torch.testing.assert_close(sums[0], sums[1])  # the same 2,400 rows


def test_a_training_is_that_of_a_run_and_says_nothing(finished, capsys, caplog):
    experiment = Experiment.of_run(finished.config, SMALL)
    capsys.readouterr()
    random = torch.get_rng_state()
    with caplog.at_level(logging.INFO):
        found = experiment.fit(experiment.config.train, experiment.config.seed)
    assert (capsys.readouterr(), caplog.text) == (("", ""), "")
    assert torch.equal(random, torch.get_rng_state())
    run = finished.train(*SMALL)
    weights = run.bundle().model.state_dict()
    assert all(torch.equal(weights[name], tensor) for name, tensor in found.model.state_dict().items())


def test_a_training_ends_from_within_and_logs_again_afterwards(trained, caplog):
    experiment = Experiment.of_run(trained[0].config, SMALL)
    steps = []

    def stop(model, step):
        steps.append(step)
        if step == 3:
            raise Enough

    with pytest.raises(Enough):
        experiment.fit(experiment.config.train, 1, stop)
    assert steps == [1, 2, 3]
    with caplog.at_level(logging.INFO):
        logging.getLogger("pipeline").info("heard")
    assert "heard" in caplog.text
