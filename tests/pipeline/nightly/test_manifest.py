"""Which raw files a night read: lists that lines share, and lines of the version before, which held the list itself."""

import json
import os
from pathlib import Path

import pytest

from gigabatch.pipeline.nightly.manifest import FOLDER, LISTS_KEPT, keep_newest, read_manifest, write_manifest
from gigabatch.pipeline.nightly.pages import LAST, Material, write_night
from gigabatch.pipeline.nightly.reference import champions
from gigabatch.pipeline.nightly.start import warm_nights
from gigabatch.pipeline.runs.record import append_record

# A warm night's line, copied from the version that wrote each file's checksum into it; three of its 63 files.
OLD_LINE = (
    '{"at": "2026-11-22T21:27:34+00:00", "action": "nightly", "exit_code": 0, "decision": "Promoted: AUC '
    "0.7532 against 0.7445 on 49,368 rows that neither model has seen; gain +0.0086, lower bound +0.0073,"
    ' tolerance 0.015.", "run": "50f488b48a7d", "reasons": [], "metric": "AUC", "rows": 49368, "candidate'
    '": 0.7531685613922088, "constant": 0.5, "current": 0.7445376358101655, "gain": 0.008630925582043258,'
    ' "bound": 0.007269333738362099, "record": 0.7476949902909255, "upper": 0.009719061826642872, "agains'
    't_reference": {"target": {"metric": "AUC", "rows": 49368, "candidate": 0.7531685613922088, "constant'
    '": 0.5, "current": 0.7347818275445083, "gain": 0.01838673384770051, "bound": 0.016760353120544823, "'
    'record": 0.7412529947186266, "upper": 0.019717072489463056}}, "seed": 1, "config": "c7ebf7d1a62a28f0'
    '9f540070e905448b", "environment": {"machine": "x86_64", "system": "Linux-6.18.44-fc-v657-x86_64-with'
    '-glibc2.36", "python": "3.11.7", "pandas": "3.0.6", "pyarrow": "26.0.1", "numpy": "2.4.6", "torch": '
    '"2.13.0+cpu", "dask": "2026.7.1", "device": "cpu", "threads": 1}, "files": {"accepted": ["/tmp/n14/s'
    'ite0/raw/day-062.csv"], "quarantined": [], "warnings": ["files of kind \'train\' are late: the newest '
    'row is of 2026-03-04T23:14:46+00:00, 6310.2 hours ago; the bound is 48.2 hours."], "drift": {"train"'
    ': {"user_id": "ok", "action_type": "ok", "platform": "ok", "city": "ok", "device": "ok", "current_fi'
    'lters": "ok", "clicked_first": "ok", "step": "ok"}}}, "data": {"files": 3, "checksums": {"0:day-001.'
    'csv": "xxh3:fbb609603f805950d7bf5ce75baf312c", "1:day-002.csv": "xxh3:a21081edfb27a7741b908840dc1584'
    '2d", "2:test.csv": "xxh3:5b177a703f5da0eb1f6cbd31043f9c05"}}, "splits": {"train": 419568, "valid": 2'
    '4688, "test": 49368, "score": 8}, "start": {"how": "warm", "why": "from d9ff4db378dc"}, "window": {"'
    'rows": 11220, "new": 6672, "late": 8, "late_trained": 808, "replayed": 3740, "gone": 0}, "reference"'
    ': "99eed832531c", "champion": "50f488b48a7d", "steps": {"contract": {"seconds": 1.906, "cpu_seconds"'
    ': 0.884}, "features": {"skipped": false, "bytes": 11392694, "files": {"read": 0, "reused": 0}, "hist'
    'ory": null, "seconds": 12.5, "cpu_seconds": 7.67}, "encode": {"skipped": false, "bytes": 164224168, '
    '"seconds": 2.139, "cpu_seconds": 1.165}, "train": {"skipped": false, "bytes": 11636486, "seconds": 0'
    '.768, "cpu_seconds": 0.737}, "evaluate": {"seconds": 2.186, "cpu_seconds": 2.108}, "compare": {"seco'
    'nds": 5.487, "cpu_seconds": 3.623}, "store": {"seconds": 0.0, "cpu_seconds": 0.0}}}'
)


def files(*names: str) -> dict[str, str]:
    return {f"{place}:{name.partition('=')[0]}": f"xxh3:{name}" for place, name in enumerate(names)}


def night(home: Path, *names: str) -> dict:
    data = write_manifest(home, files(*names))
    append_record(home, "nightly", 0, "", "a", data=data)
    return data


def test_a_line_names_the_list_and_what_is_new_or_gone(tmp_path):
    first = night(tmp_path, "b", "d")
    assert (first["files"], first["before"]) == (2, None)
    assert "new" not in first
    second = night(tmp_path, "a", "b", "d=2")  # another place in the list is no change, another content is
    assert second["before"] == first["manifest"] != second["manifest"]
    assert second["new"] == {"0:a": "xxh3:a", "2:d": "xxh3:d=2"}
    assert second["gone"] == {"1:d": "xxh3:d"}
    append_record(tmp_path, "promote", 0, "by hand", "a")
    third = night(tmp_path, "a", "b", "d=2")
    assert third == {"files": 3, "manifest": second["manifest"], "before": second["manifest"], "new": {}, "gone": {}}
    assert read_manifest(tmp_path, third["manifest"]) == files("a", "b", "d=2")
    assert len(os.listdir(tmp_path / FOLDER)) == 2


def test_what_is_new_is_counted_since_the_night_that_came_to_a_decision(tmp_path):
    """A night that was stopped or refused has trained no current model on what was new to it."""
    decided = night(tmp_path, "a")
    for code in (143, 40, 20):
        append_record(tmp_path, "nightly", code, "", None, data=write_manifest(tmp_path, files("a", "b")))
    third = night(tmp_path, "a", "b", "c")
    assert (third["before"], third["new"]) == (decided["manifest"], {"1:b": "xxh3:b", "2:c": "xxh3:c"})


def test_files_of_one_name_and_content_in_two_folders_are_two(tmp_path):
    write_manifest(tmp_path, {"0:a": "xxh3:a"})
    append_record(tmp_path, "nightly", 0, "", "a", data=write_manifest(tmp_path, {"0:a": "xxh3:a"}))
    assert write_manifest(tmp_path, {"0:a": "xxh3:a", "1:a": "xxh3:a"})["new"] == {"1:a": "xxh3:a"}


def test_a_line_stays_short_with_thousands_of_files(tmp_path):
    names = [f"day-{place:05d}.csv" for place in range(3000)]
    night(tmp_path, *names)
    night(tmp_path, *names, "day-03000.csv")
    assert all(len(line) < 500 for line in (tmp_path / "nightly.jsonl").read_text().splitlines())


@pytest.mark.parametrize("damage", ["", "{", "[1]", '{"0:b": "xxh3:other"}'])
def test_after_a_list_that_is_damaged_nothing_is_called_new(tmp_path, damage):
    first = night(tmp_path, "b")
    (tmp_path / FOLDER / f"{first['manifest']}.json").write_text(damage)
    assert read_manifest(tmp_path, first["manifest"]) is None
    second = night(tmp_path, "b", "c")
    assert second["before"] is None
    assert "new" not in second
    assert night(tmp_path, "b", "c", "d")["new"] == {"2:d": "xxh3:d"}


def test_the_lists_that_were_named_last_stay(tmp_path):
    named = [night(tmp_path, *map(str, range(number)))["manifest"] for number in range(LISTS_KEPT + 5)]
    for place, name in enumerate(named):
        os.utime(tmp_path / FOLDER / f"{name}.json", ns=(place, place))
    again = night(tmp_path, "0", "1")["manifest"]  # an old list is named again
    keep_newest(tmp_path)
    left = {path.stem for path in (tmp_path / FOLDER).iterdir()}
    assert left == {again, *named[-LISTS_KEPT + 1 :]}
    keep_newest(tmp_path / "nowhere")


def test_lines_of_the_version_before_are_read(tmp_path):
    old = json.loads(OLD_LINE)
    (tmp_path / "nightly.jsonl").write_text(OLD_LINE + "\n")
    assert champions(tmp_path, 30) == [old["champion"]]
    assert warm_nights(tmp_path) == 1
    page = write_night(tmp_path, old, Material())
    assert "raw files" in page.read_text()
    assert (tmp_path / LAST).exists()
    changed = {**old["data"]["checksums"], "0:day-001.csv": "xxh3:other", "3:day-003.csv": "xxh3:new"}
    data = write_manifest(tmp_path, changed)
    assert data["before"] is None  # which no file holds
    assert data["new"] == {"0:day-001.csv": "xxh3:other", "3:day-003.csv": "xxh3:new"}
    assert data["gone"] == {"0:day-001.csv": old["data"]["checksums"]["0:day-001.csv"]}
