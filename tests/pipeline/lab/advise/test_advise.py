"""`gigabatch advise`: what is measured, what is predicted of it, and what it says."""

import json
from dataclasses import replace

import pytest

from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.lab.advise.advise import EACH, HERE, _des, advise
from gigabatch.pipeline.lab.advise.lemmas import all_reduce_bytes, parameter_servers, speed_up
from gigabatch.pipeline.lab.advise.links import Link, LinkError, Links, measure_links
from gigabatch.pipeline.lab.advise.one_rank import Work
from gigabatch.pipeline.lab.bounds import AdviseBounds
from gigabatch.pipeline.lab.experiment import Experiment

SMALL = ("train.batch_size=64", "train.epochs=1")
QUICK = AdviseBounds(seconds=1.0, bandwidth=1e9, latency=1e-5)


@pytest.fixture(scope="module")
def found(trained):
    with pytest.MonkeyPatch.context() as patch:
        for name in ("SWEEP_SHARE", "RUN_SHARE"):  # the least number of steps, and time for all devices
            patch.setattr(f"gigabatch.pipeline.lab.advise.advise.{name}", 0.0)
        return advise(Experiment.of_run(trained[0].config, [*SMALL]), replace(QUICK, seconds=100.0))


def test_every_number_of_devices_is_predicted_in_both_places_and_schemes(found):
    told = {(one.num_devices, one.where, one.tables) for one in found.predictions}
    assert told == {(n, p, s) for n in (2, 4, 8) for p in (EACH, HERE) for s in ("replicated", "sharded")}
    for one in found.predictions:
        assert one.seconds == pytest.approx(one.computed + one.wire)
        assert one.speed_up == pytest.approx(one.baseline / one.seconds)
        assert one.efficiency == pytest.approx(one.speed_up / one.num_devices)
        assert one.sent >= one.sent_for_tables > 0


def test_the_profile_is_of_the_parts_that_ranks_would_have(found):
    assert [one.batch_size for one in found.profile] == [64, 32, 16]
    distinct = [sum(one.distinct) for one in found.profile]
    assert distinct == sorted(distinct, reverse=True)
    assert all(0 < sum(one.distinct) <= one.batch_size * len(one.distinct) for one in found.profile)
    update, rest = found.profile[0].step.seconds["update"], found.profile[0].step.total
    assert 0 < found.overhead == pytest.approx(update / (rest - update), rel=0.5)


def test_servers_and_hiding_follow_the_formulas(found):
    assert len(found.table_widths) == len(found.profile[0].distinct) > 0
    for number, count in found.servers.items():
        part = next(one for one in found.profile if one.batch_size == 64 // number)
        seconds = part.step.seconds["forward + backward"]
        assert count == max(-(-_server_bytes(found, part) * number // (1e9 * seconds)), 1)
        assert found.hidden[number] == (2 * (number - 1) / number * 4 * found.dense_parameters / 1e9 <= 2 / 3 * seconds)


def _server_bytes(found, part):
    """8 bytes a dense weight; of a row id and numbers, there and back."""
    rows = zip(part.distinct, found.table_widths, strict=True)
    return 8 * found.dense_parameters + sum(8 * distinct * (1 + width) for distinct, width in rows)


def test_the_command_prints_json_and_keeps_it(finished, capsys):
    line = ["--config", str(finished.config), *SMALL, "--json", "--seconds", "1", "--bandwidth", "1e9", "-q"]
    assert main(["advise", *line]) == 0
    told = json.loads(capsys.readouterr().out)
    kept = json.loads((finished.folder / "runs" / told["name"] / "advise.json").read_text())
    assert kept == told
    assert set(told["verdicts"]) == {"batch", "devices", "tables", "all-reduce", "servers", "not known"}
    assert told["links"]["kinds"]["all_reduce"] == {"latency": 2e-5, "bandwidth": 1e9}


def test_the_command_prints_tables_and_sentences(finished, capsys):
    line = ["--config", str(finished.config), *SMALL, "--seconds", "1", "--bandwidth", "1e9", "-q"]
    assert main(["advise", *line]) == 0
    out = capsys.readouterr().out
    for text in ("steps on one device", "lemma 2 %", "rows pay", "lemma 3", "whole ones fit", "advise.json"):
        assert text in out


def test_des_is_advised_by_its_setting(found):
    """`train.tables=des` trains so; the sentence said that there was no setting."""
    told = replace(found, des={2: (1.0, {"linear": "des"})}).verdicts()["tables"]
    assert "DES on 2 sends" in told
    assert told.endswith("(linear: des): train.tables=des.")


@pytest.mark.parametrize(("words", "numbers"), [((), {2, 4, 8}), (("train.optimizer=cowclip",), set())])
def test_des_is_advised_where_train_tables_des_can_train(words, numbers, trained):
    work = Work.of(Experiment.of_run(trained[0].config, [*SMALL, "model={kind: fm}", *words]))
    assert set(_des(work)) == numbers


def test_slow_messages_leave_one_device(trained):
    slow = AdviseBounds(seconds=1.0, bandwidth=1e3, latency=1.0)
    found = advise(Experiment.of_run(trained[0].config, [*SMALL]), slow)
    assert found.paying == 1
    assert found.verdicts()["devices"].startswith("One: 2 devices would have")


def test_that_the_time_was_up_is_said(trained):
    found = advise(Experiment.of_run(trained[0].config, [*SMALL]), replace(QUICK, seconds=1e-3))
    assert found.late
    assert {one.num_devices for one in found.predictions} == {2}
    assert "The time was up" in found.verdicts()["devices"]


def test_a_model_that_several_ranks_cannot_train_is_said(trained):
    found = advise(Experiment.of_run(trained[0].config, [*SMALL, "train.accumulate_steps=2"]), QUICK)
    assert found.predictions == ()
    assert "accumulate_steps=2" in found.verdicts()["devices"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--bandwidth", "0"], "--bandwidth must be above 0"),
        (["--efficiency", "1.5"], "--efficiency must be above 0 and at most 1"),
        (["train.batch_size=512", "--bandwidth", "1e9"], "fewer than 8 batches of 512"),
    ],
)
def test_mistakes_are_one_line(words, text, finished, capsys):
    assert main(["advise", "--config", str(finished.config), *words, "-q"]) == 2
    assert text in capsys.readouterr().err


def test_the_lemmas_by_hand():
    assert [speed_up(n, 0.5) for n in (1, 2, 4)] == [1, 1.5, 2]  # n 1.5 / (1 + n / 2)
    assert all_reduce_bytes(4, 1000) == 6000
    assert parameter_servers(3e6, 4, 1e9, 0.004) == 3
    assert parameter_servers(3e6, 4, 1e9, 0.0041) == 3
    assert parameter_servers(3e6, 4, 1e9, 0.0039) == 4
    assert parameter_servers(1, 1, 1e9, 1) == 1


def test_messages_one_after_the_other():
    links = Links({kind: Link(1e-3, 1e6) for kind in ("all_reduce", "all_gather", "all_to_all")}, 1.0, measured=True)
    sent, calls = (
        {"all_reduce gradients": 4000.0, "reduce_scatter sums": 500.0},
        {"all_reduce gradients": 1, "reduce_scatter sums": 2},
    )
    assert links.seconds(sent, calls, 2) == pytest.approx(3e-3 + 4.5e-3)
    assert links.seconds(sent, calls, 4) == pytest.approx(9e-3 + 4.5e-3)


def test_two_processes_are_measured():
    found = measure_links("cpu")
    assert found.measured
    assert found.sharing >= 1
    assert all(1e6 < link.bandwidth < 1e12 for link in found.kinds.values())


def test_without_two_gpus_the_bandwidth_is_asked_for(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    with pytest.raises(LinkError, match="Give --bandwidth"):
        measure_links("cuda")
