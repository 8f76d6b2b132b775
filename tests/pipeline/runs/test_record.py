"""nightly.jsonl: what is written after damage, and what damage does to those that read it."""

from gigabatch.pipeline.config.config import load_config
from gigabatch.pipeline.runs.listing import list_runs
from gigabatch.pipeline.runs.record import append_record, read_records


def test_a_line_after_one_that_was_cut_is_not_lost(tmp_path):
    append_record(tmp_path, "train", 0, "first", "a")
    with open(tmp_path / "nightly.jsonl", "a") as file:
        file.write('{"at": "2026-11')  # the disk was full
    append_record(tmp_path, "rollback", 0, "second", "a")
    append_record(tmp_path, "promote", 0, "third", "b")
    assert [line["decision"] for line in read_records(tmp_path)] == ["first", "second", "third"]


def test_a_line_of_the_record_that_names_no_run_by_text_lists_runs_all_the_same(finished):
    with open(finished.home / "nightly.jsonl", "a") as file:
        file.write('{"run": ["a"], "exit_code": 10}\n')
    assert len(list_runs(load_config(finished.config))) == 1
