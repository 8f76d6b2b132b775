"""Wheels in parts and back; what is packed for a box; environment.yml and pyproject.toml name the same."""

import errno
import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools import gpu_pack, gpu_parts, gpu_run

ROOT = Path(__file__).parents[2]
LIMIT = 5000


def fake_wheel(folder, name, size):
    """A wheel that pip installs: one module with `size` random bytes beside it."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    about = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}.py", "answer = 42\n")
        wheel.writestr(f"{name}.bin", hashlib.shake_256(name.encode()).digest(size))
        wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{about}/RECORD", "")
    return path


@pytest.fixture
def parts(tmp_path):
    """Part folders of three wheels, one of which is larger than a part."""
    source = tmp_path / "wheels"
    source.mkdir()
    wheels = [fake_wheel(source, name, size) for name, size in (("large", 12_000), ("middle", 2000), ("small", 900))]
    return wheels, gpu_parts.split("base", wheels, tmp_path / "carry", {"python": "3.12"}, LIMIT)


def files_of(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != "manifest.json")


def test_parts_hold_every_byte_once_and_none_is_too_large(parts):
    wheels, folders = parts
    assert [folder.name for folder in folders] == [f"base-{number:02d}" for number in range(1, len(folders) + 1)]
    assert len(folders) >= 4
    assert all(sum((folder / name).stat().st_size for name in files_of(folder)) <= LIMIT for folder in folders)
    names = sorted(name for folder in folders for name in files_of(folder))
    assert names == sorted([f"large-1.0-py3-none-any.whl.{n:03d}" for n in range(3)] + [p.name for p in wheels[1:]])
    pieces = {name: (folder / name).read_bytes() for folder in folders for name in files_of(folder)}
    assert b"".join(pieces[name] for name in sorted(pieces) if name.startswith("large")) == wheels[0].read_bytes()


def test_collected_in_any_order_they_are_the_wheels_again(parts, tmp_path):
    wheels, folders = parts
    store = tmp_path / "store"
    for done, folder in enumerate(reversed(folders), 1):
        _, out = gpu_parts.collect(folder, store)
        assert len(out) == len(folders) - done
    assert {path.name: path.read_bytes() for path in gpu_parts.join("base", store)} == {
        path.name: path.read_bytes() for path in wheels
    }


def test_a_whole_group_is_installed_beside_the_box(parts, tmp_path, capsys):
    _, folders = parts
    store = tmp_path / "store"
    assert gpu_run.main(["--wheels", str(store), "--collect", *map(str, folders[:-1])]) == 0
    assert f"still missing part {folders[-1].name}" in capsys.readouterr().out
    assert not gpu_parts.site("base", store).exists()
    assert gpu_run.main(["--wheels", str(store), "--collect", str(folders[-1])]) == 0
    assert (gpu_parts.site("base", store) / "large.py").read_text() == "answer = 42\n"


def test_the_pth_files_of_a_group_are_run_where_it_is_on_the_path_alone(tmp_path):
    """numba-cuda takes the place of `numba.cuda` by one; Python runs those of its own site-packages alone."""
    wheel = fake_wheel(tmp_path, "redirector", 10)
    with zipfile.ZipFile(wheel, "a") as added:
        added.writestr("redirector.pth", "import os; os.environ['REDIRECTED'] = 'yes'\n")
    (part,) = gpu_parts.split("cudf", [wheel], tmp_path / "carry", {})
    gpu_parts.collect(part, tmp_path / "store")
    site = gpu_parts.install("cudf", tmp_path / "store")
    done = subprocess.run(
        [sys.executable, "-c", "import os; print(os.environ.get('REDIRECTED'))"],
        env={**os.environ, "PYTHONPATH": str(site)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "yes"


@pytest.mark.parametrize("place", range(3))
def test_a_flipped_byte_is_named(parts, tmp_path, capsys, place):
    _, folders = parts
    victim = next(path for path in sorted(folders[place].iterdir()) if path.name != "manifest.json")
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    assert gpu_run.main(["--wheels", str(tmp_path / "store"), "--collect", str(folders[place])]) == 1
    assert f"{victim}: damaged" in capsys.readouterr().out


def test_a_byte_that_flips_in_the_store_is_named(parts, tmp_path):
    _, folders = parts
    store = tmp_path / "store"
    for folder in folders:
        gpu_parts.collect(folder, store)
    victim = next((store / "base").glob("*.whl.001"))
    content = bytearray(victim.read_bytes())
    content[7] ^= 1
    victim.write_bytes(content)
    with pytest.raises(gpu_parts.PartError, match="its pieces do not make it up"):
        gpu_parts.join("base", store)


def test_a_missing_file_and_a_torn_manifest_are_named(parts, tmp_path):
    _, folders = parts
    name = files_of(folders[0])[0]
    (folders[0] / name).unlink()
    with pytest.raises(gpu_parts.PartError, match=f"{re.escape(name)}: missing"):
        gpu_parts.collect(folders[0], tmp_path / "store")
    (folders[1] / "manifest.json").write_text("{")
    with pytest.raises(gpu_parts.PartError, match=r"no readable manifest\.json"):
        gpu_parts.collect(folders[1], tmp_path / "store")


@pytest.mark.parametrize("content", ["", "[]", '{"pack": "a"}'])
def test_a_torn_record_of_a_part_in_the_store_is_named(parts, tmp_path, capsys, content):
    """As a full disk leaves it; the runner goes on with the steps."""
    _, folders = parts
    store = tmp_path / "store"
    gpu_parts.collect(folders[0], store)
    (record,) = (store / "base").glob("part-*.json")
    record.write_text(content)
    assert gpu_run.main(["--wheels", str(store), "--collect", str(folders[1])]) == 1
    assert f"{record}: unreadable" in capsys.readouterr().out
    with pytest.raises(gpu_parts.PartError, match="unreadable"):
        gpu_parts.join("base", store)


def test_a_disk_that_is_full_leaves_no_half_record_of_a_part(parts, tmp_path, monkeypatch):
    _, folders = parts
    store, real = tmp_path / "store", Path.write_text

    def full(path, text):
        real(path, text[: len(text) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", full)
        assert gpu_run.main(["--wheels", str(store), "--collect", str(folders[0])]) == 1
    for folder in folders:
        _, out = gpu_parts.collect(folder, store)
    assert out == []


def test_a_manifest_cannot_write_outside_the_store(parts, tmp_path):
    _, folders = parts
    manifest = json.loads((folders[0] / "manifest.json").read_text())
    manifest["files"][0]["name"] = "../out.whl"
    (folders[0] / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(gpu_parts.PartError, match="no file name"):
        gpu_parts.collect(folders[0], tmp_path / "store")


def test_parts_of_two_packs_are_not_mixed(parts, tmp_path):
    _, folders = parts
    gpu_parts.collect(folders[0], tmp_path / "store")
    (tmp_path / "other").mkdir()
    wheel = fake_wheel(tmp_path / "other", "other", 100)
    (other,) = gpu_parts.split("base", [wheel], tmp_path / "carry-other", {}, LIMIT)
    with pytest.raises(gpu_parts.PartError, match="another pack"):
        gpu_parts.collect(other, tmp_path / "store")


def test_a_new_pack_leaves_no_part_of_the_old_one(parts, tmp_path):
    wheels, folders = parts
    found = gpu_parts.split("base", wheels[2:], tmp_path / "carry", {}, LIMIT)
    assert len(found) == 1 < len(folders)
    assert sorted((tmp_path / "carry").iterdir()) == found


# What a box lacks: a small world of packages in the form of pip's report.


def entry(name, version, *needs):
    return {"metadata": {"name": name, "version": version, "requires_dist": list(needs)}}


WORLD = {
    "web": entry("Web", "1.0", "forms>=2", "numpy<3", "legacy; python_version < '3.12'", "extra-only; extra == 'x'"),
    "forms": entry("forms", "2.5", "strict-core==2.5.1", "toolkit[parts]==13.*"),
    "strict-core": entry("strict_core", "2.5.1"),
    "numpy": entry("numpy", "2.4.6"),
    "toolkit": entry(
        "toolkit", "13.5", "blas==13.5.*; extra == 'parts'", "compiler==13.5.*; extra == 'parts'", "other"
    ),
    "compiler": entry("compiler", "13.5.1"),
    "blas": entry("blas", "13.5.1"),
    "extra-only": entry("extra-only", "1"),
}
BOX = {"numpy": "2.5.2", "toolkit": "13.0.2", "blas": "13.0.1"}


def lacking(text, box=BOX, kept=("numpy",), world=WORLD):
    packed, unknown = gpu_pack.lacking([Requirement(text)], world, box, "3.12", kept)
    return sorted(packed), sorted(map(str, unknown))


def test_only_what_the_box_lacks_is_packed():
    assert lacking("web") == (["compiler", "forms", "strict-core", "web"], [])
    assert lacking("web[x]") == (["compiler", "extra-only", "forms", "strict-core", "web"], [])
    assert lacking("web", BOX | {"web": "1.1"}) == ([], [])
    assert lacking("web>=2", BOX | {"web": "1.1"})[0] != []


def test_a_version_of_the_box_that_may_be_too_new_is_not_trusted():
    assert "strict-core" in lacking("web", BOX | {"strict-core": ""})[0]
    assert "strict-core" not in lacking("web", BOX | {"strict-core": "2.5.1"})[0]
    assert "forms" not in lacking("web", BOX | {"forms": ""})[0]


def test_what_must_stay_is_never_replaced():
    world = WORLD | {"web": entry("web", "1.0", "numpy<2.5")}
    with pytest.raises(SystemExit, match=r"web 1\.0 needs numpy<2\.5, but the box's numpy 2\.5\.2 is never replaced"):
        lacking("web", world=world)
    assert lacking("web", world=world, kept=("torch",)) == (["numpy", "web"], [])  # of cuDF's group, beside the box's


@pytest.mark.parametrize("name", gpu_pack.NOT_USED)
def test_what_is_not_used_is_packed_with_nothing_of_its_own(name):
    world = {
        "frames": entry("frames", "1", f"{name}[cu13]>=0.3", "compiler"),
        name: entry(name.replace("-", "_"), "1", "extra-only", "blas; extra == 'cu13'"),
        **{other: WORLD[other] for other in ("compiler", "extra-only", "blas")},
    }
    assert lacking("frames", world=world) == (["compiler", "frames"], [])


def test_what_pip_did_not_resolve_is_asked_for_again():
    world = {name: found for name, found in WORLD.items() if name != "strict-core"}
    assert lacking("web", world=world)[1] == ["strict-core==2.5.1"]


def test_the_list_of_the_box_has_what_must_stay():
    box = gpu_pack.read_box(ROOT / "tools/gpu_box.txt")
    assert all(box[name] for name in gpu_pack.KEPT["base"])
    assert {"pandas", "pyarrow", "numba", "pytest", "scikit-learn"} <= box.keys()
    assert not {"pydantic", "dask", "cudf-cu13", "rmm-cu13"} & box.keys()


# environment.yml and pyproject.toml.

CONDA_NAMES = {"pytorch": "torch", "matplotlib-base": "matplotlib", "python-xxhash": "xxhash", "cupy": "cupy-cuda13x",
               "cudf": "cudf-cu13", "dask-cudf": "dask-cudf-cu13"}  # fmt: skip
CONDA_ALONE = {"python", "cuda-version", "dask-cuda", "pip", "jupyterlab"}


def conda():
    """Names as PyPI has them -> bounds, of environment.yml."""
    listed = (ROOT / "environment.yml").read_text().partition("dependencies:")[2]
    lines = re.findall(r"^ +- (\w[\w.-]*)([<>=!~][^#\n]*)?", listed, re.MULTILINE)
    return {str(canonicalize_name(CONDA_NAMES.get(name, name))): bound.strip() for name, bound in lines}


def wanted():
    """Names -> requirement, of pyproject.toml: what runs, the GPU's, and the tests' that conda installs."""
    found = gpu_pack.extras()
    texts = [*found[""], *found["gpu"], *found["dev"]]
    return {str(canonicalize_name(one.name)): one for one in map(Requirement, texts)}


def least(bound):
    """The least version that a bound of conda's or pip's lets in, as a tuple; None where it names none."""
    found = re.search(r"(?:>=|==?)\s*(\d+(?:\.\d+)*)", bound)
    return tuple(map(int, found[1].split("."))) if found else None


def test_conda_has_every_package_that_pip_installs():
    project = gpu_pack.extras()
    needed = {str(canonicalize_name(Requirement(text).name)) for text in [*project[""], *project["gpu"]]}
    assert needed <= conda().keys(), needed - conda().keys()


def test_conda_has_no_package_of_which_pip_knows_nothing():
    known = set(wanted()) | CONDA_ALONE | set(map(str, gpu_pack.read_box(ROOT / "constraints.txt")))
    assert not conda().keys() - known, conda().keys() - known


def test_least_versions_are_the_same():
    """pip's `==26.10.*` and conda's `=26.10` are one bound; both let in what else cuDF's own pins allow."""
    pairs = {name: (bound, str(wanted()[name].specifier)) for name, bound in conda().items() if name in wanted()}
    assert len(pairs) > 20
    assert not {name: pair for name, pair in pairs.items() if least(pair[0]) != least(pair[1])}


def test_greatest_versions_are_no_wider_than_pips():
    """What pip bounds from above conda bounds too."""
    pairs = {name: (bound, str(wanted()[name].specifier)) for name, bound in conda().items() if name in wanted()}
    assert not {name: pair for name, pair in pairs.items() if "<" in pair[1] and "<" not in pair[0]}
