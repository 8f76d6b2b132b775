"""Links and blocks: moved all at once or not at all, understood as earlier versions and people set them."""

import os
import shutil
from pathlib import Path

import pytest

from gigabatch.pipeline.runs.pointers import (
    RunError,
    current_run,
    locked,
    read_pointers,
    require_current,
    write_pointers,
)
from gigabatch.pipeline.store.files import atomic_symlink

BLOCK = {"c": {"at": "2026-11-22T03:00:00+00:00", "weights": "00"}}


@pytest.fixture
def home(tmp_path) -> Path:
    for name in "abc":
        (tmp_path / "tiny" / name).mkdir(parents=True)
    return tmp_path / "tiny"


def said(home: Path) -> tuple:
    found = read_pointers(home)
    return tuple(None if path is None else path.name for path in (found.current, found.previous)), found.blocked


def followed(home: Path) -> tuple:
    """What one sees who knows nothing of `promoted`: a service, a shell."""
    return tuple((home / name).resolve().name if (home / name).exists() else None for name in ("current", "previous"))


def test_pointers_are_relative_links_that_anyone_can_follow(home):
    assert said(home) == ((None, None), {})
    write_pointers(home, home / "a", None, {})
    assert said(home) == (("a", None), {})
    write_pointers(home, home / "b", home / "a", BLOCK)
    assert said(home) == (("b", "a"), BLOCK)
    moved = home.rename(home.with_name("moved"))
    assert said(moved) == (("b", "a"), BLOCK)
    assert followed(moved) == ("b", "a")
    assert len(list(moved.glob(".promoted-*"))) == 2


@pytest.mark.parametrize("start", ["nothing", "one", "two", "set by hand", "of an earlier version"])
@pytest.mark.parametrize("step", range(12))
def test_a_crash_at_any_step_leaves_the_old_or_the_new_and_no_mixture(home, monkeypatch, start, step):
    """P23: current and previous were two renames, and a rollback after a crash between them brought nothing back."""
    before = ((None, None), {})
    if start != "nothing":
        write_pointers(home, home / "a", None, {})
        before = (("a", None), {})
    if start in ("two", "set by hand"):
        write_pointers(home, home / "b", home / "a", {})
        before = (("b", "a"), {})
    if start == "set by hand":
        atomic_symlink(Path("c"), home / "current")
        before = (("c", "a"), {})
    if start == "of an earlier version":
        for name, run in (("current", "b"), ("previous", "a")):
            (home / name).unlink(missing_ok=True)
            (home / name).symlink_to(run)
        (home / "promoted").unlink()
        before = (("b", "a"), {})
    assert said(home) == before
    previous, blocked = (None, {}) if start == "nothing" else ("b", BLOCK)
    after = (("c", previous), blocked)
    done, real = [], {name: getattr(os, name) for name in ("replace", "symlink", "mkdir")}

    def counted(name):
        def call(*arguments, **options):
            if len(done) == step:
                raise KeyboardInterrupt
            done.append(name)
            return real[name](*arguments, **options)

        return call

    for name in real:
        monkeypatch.setattr(os, name, counted(name))

    def write():
        write_pointers(home, home / "c", previous and home / previous, blocked)

    try:
        write()
    except KeyboardInterrupt:
        monkeypatch.undo()
        assert said(home) in (before, after)
        assert followed(home) == said(home)[0]
        write()  # the next one mends it
    else:
        assert step >= 4
    monkeypatch.undo()
    assert said(home) == after
    assert followed(home) == after[0]


def test_a_link_that_leads_nowhere_is_not_the_same_as_none(home):
    assert current_run(home) is None
    with pytest.raises(RunError, match=r"current is not there: no run is promoted\. Train"):
        require_current(home)
    write_pointers(home, home / "a", None, {})
    (home / "a").rmdir()
    for ask in (current_run, require_current):
        with pytest.raises(RunError, match=r"current leads to .*/tiny/a, which is not there"):
            ask(home)
    write_pointers(home, home / "b", None, {})
    assert require_current(home) == home / "b"


def test_a_name_that_has_no_runs_gets_no_folder_by_asking(home):
    with pytest.raises(RunError, match=r"typo is not there: no run of that name"), locked(home / "typo"):
        pass
    assert not (home / "typo").exists()


def test_blocks_that_cannot_be_read_are_not_taken_for_none(home):
    write_pointers(home, home / "a", None, BLOCK)
    for text in ("{", "[1]", "[]", '[["c", 1]]', '{"c": 3}', '{"c": null}', "[" * 100_000):
        (home / "promoted" / "blocked.json").write_text(text)
        with pytest.raises(RunError, match=r"blocked\.json: damaged .* Remove it to lift all"):
            read_pointers(home)
    (home / "promoted" / "blocked.json").unlink()
    assert said(home) == (("a", None), {})
    (home / "promoted" / "blocked.json").symlink_to("/proc/self/mem")  # a disk that fails
    with pytest.raises(RunError, match=r"blocked\.json cannot be read \(Input/output error\)\. Mend what"):
        read_pointers(home)


def test_a_reader_that_follows_the_old_links_still_arrives(home):
    write_pointers(home, home / "a", None, {})
    old = Path(os.path.realpath(home / "promoted"))
    with locked(home):
        write_pointers(home, home / "b", home / "a", {})
    assert (old / "current").resolve() == home / "a"
    assert len(list(home.glob(".promoted-*"))) == 2


@pytest.mark.parametrize("leads", [True, False])
def test_a_link_that_a_kill_left_on_its_way_to_promoted_is_removed(home, leads):
    """It counted as a generation: `current` moved, and then `rmtree` met a link, so that the night called it failed."""
    write_pointers(home, home / "a", None, {})
    write_pointers(home, home / "b", home / "a", {})
    target = ".promoted-aaaaaaaa" if leads else ".promoted-gone"
    if leads:
        shutil.copytree(home / "promoted", home / target, symlinks=True)
    (home / ".promoted-123-bbbbbbbb").symlink_to(target)
    old = Path(os.path.realpath(home / "promoted"))
    write_pointers(home, home / "c", home / "b", BLOCK)
    assert said(home) == (("c", "b"), BLOCK)
    assert sorted(path.name for path in home.glob(".promoted-*")) == sorted([old.name, os.readlink(home / "promoted")])
    assert (old / "current").resolve() == home / "b"


def test_where_old_links_cannot_be_removed_nothing_has_moved(home, monkeypatch):
    write_pointers(home, home / "a", None, {})
    write_pointers(home, home / "b", home / "a", {})

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", refuse)
        with pytest.raises(PermissionError):
            write_pointers(home, home / "c", home / "b", BLOCK)
    assert said(home) == (("b", "a"), {})


def test_what_is_promoted_and_blocked_is_not_taken_for_none_where_its_folder_is_gone(home):
    """`cp -r runs/tiny/* elsewhere` leaves hidden folders behind; the next night then promoted anything."""
    write_pointers(home, home / "a", None, {})
    write_pointers(home, home / "b", home / "a", BLOCK)
    for path in home.glob(".promoted-*"):
        shutil.rmtree(path)
    for ask in (read_pointers, current_run, require_current):
        with pytest.raises(RunError, match=r"promoted leads to .*\.promoted-.*, which is not there"):
            ask(home)
    (home / "promoted").unlink()  # as the message says
    with pytest.raises(RunError, match=r"current leads to .*promoted/current, which is not there"):
        current_run(home)
    write_pointers(home, home / "c", None, {})
    assert said(home) == (("c", None), {})
    assert followed(home) == ("c", None)


def test_a_run_is_never_the_one_before_itself(home):
    write_pointers(home, home / "b", home / "a", {})
    (home / "current").unlink()  # "to start anew"
    write_pointers(home, home / "a", read_pointers(home).previous, {})
    assert said(home) == (("a", None), {})


@pytest.mark.parametrize("name", ["current", "previous", "promoted"])
def test_a_folder_in_place_of_a_link_is_named_before_anything_is_written(home, name):
    """As `cp -rL` makes it. A generation had been written, which said that the folder was current."""
    write_pointers(home, home / "b", home / "a", {})
    (home / name).unlink()
    (home / name).mkdir()
    before = sorted(path.name for path in home.iterdir())
    with pytest.raises(RunError, match=rf"{home / name}: a folder in place of a link.*\(cp -a\).*gigabatch promote ID"):
        write_pointers(home, home / "c", None, {})
    assert sorted(path.name for path in home.iterdir()) == before
    (home / name).rename(home / "moved")  # as the message says
    write_pointers(home, home / "c", home / "a", {})
    assert said(home) == (("c", "a"), {})
    assert followed(home) == ("c", "a")
