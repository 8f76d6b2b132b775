"""Removing what another process is removing, too."""

import shutil

from gigabatch.pipeline.store.locks import remove_folder


def test_a_folder_that_another_process_is_removing_too_is_removed(tmp_path, monkeypatch):
    """Two gigabatch gc at once: one ended with FileNotFoundError and a traceback."""
    folder, real = tmp_path / "run", shutil.rmtree
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "weights").write_text("12345")

    def raced(path):
        if (path / "model").is_dir():
            real(path / "model")
            raise FileNotFoundError(2, "No such file or directory", "model")
        real(path)

    monkeypatch.setattr(shutil, "rmtree", raced)
    assert remove_folder(folder) == 5
    assert not folder.exists()
    assert remove_folder(folder) == 0


def test_of_a_link_the_link_alone_is_removed(tmp_path):
    """A damaged artifact that someone had moved to another disk and linked was put aside; gc then ended in OSError."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "words").write_text("12345")
    link = tmp_path / ".damaged-a1-00000000"
    link.symlink_to(tmp_path / "disk")
    assert remove_folder(link) == 0
    assert [path.name for path in tmp_path.rglob("*")] == ["disk", "words"]
