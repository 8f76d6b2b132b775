"""Pins that do not allow each other are told, also where the build that is installed here asks for less."""

import io
import json
from http.client import IncompleteRead

import pytest

from tools.check_pins import PINS, conflicts, needs_on_pypi, read_pins


def test_a_pin_that_another_one_rules_out_is_told():
    needs = {"torch": ['triton==3.7.1; platform_system == "Linux" and python_version < "3.15"'], "triton": []}
    (line,), unknown = conflicts({"torch": "2.13.0", "triton": "3.6.0"}, lambda name, version: needs[name])
    assert line == "torch 2.13.0 needs triton==3.7.1, and the pin is 3.6.0"
    assert conflicts({"torch": "2.13.0", "triton": "3.7.1"}, lambda name, version: needs[name]) == ([], [])
    assert unknown == []


@pytest.mark.parametrize(
    "need",
    [
        'b<2; sys_platform == "win32"', 'b<2; extra == "all"', 'b<2; python_version < "3.11"', "c<2", "b>=2",
        "B>=1", "b!=1.0",
    ],
)  # fmt: skip
def test_what_is_not_meant_is_no_conflict(need):
    assert conflicts({"a": "1.0", "b": "2.0"}, lambda name, version: [need] if name == "a" else []) == ([], [])


@pytest.mark.parametrize("need", ["b<2", 'b<2; python_version >= "3.12"', 'B ==1.*; sys_platform == "linux"'])
def test_what_is_meant_on_any_supported_python_is_one(need):
    lines, _ = conflicts({"a": "1.0", "b": "2.0"}, lambda name, version: [need] if name == "a" else [])
    assert len(lines) == 1


def test_a_release_of_which_nothing_is_known_is_told():
    assert conflicts({"a": "1.0", "b": "2.0"}, lambda name, version: None) == ([], ["a", "b"])


def test_the_pins_are_read():
    pins = read_pins(PINS.read_text())
    assert pins["ruamel-yaml"]
    assert pins["sqlalchemy"].startswith("2.0.")  # behind which a comment stands
    assert all(version[0].isdigit() for version in pins.values())


def test_the_wheel_for_linux_says_what_is_needed(monkeypatch):
    wheels = ["a_b-1.0-cp311-cp311-macosx_11_0_x86_64.whl", "a_b-1.0-cp311-cp311-manylinux_2_28_x86_64.whl"]
    index = {"files": [{"filename": name, "url": f"https://files/{name}"} for name in wheels]}
    answers = {f"https://files/{name}.metadata": f"Requires-Dist: {name[20:25]}\n\n".encode() for name in wheels}
    answers["https://pypi.org/simple/a-b/"] = json.dumps(index).encode()
    monkeypatch.setattr(
        "urllib.request.urlopen", lambda asked, timeout: io.BytesIO(answers[getattr(asked, "full_url", asked)])
    )
    assert needs_on_pypi("a-b", "1.0") == ["manyl"]


@pytest.mark.parametrize("answer", [b"<html>", b"{}", b"[]", None])
def test_an_index_that_answers_otherwise_does_not_tell(monkeypatch, answer):
    def broken(*_, **__):
        raise IncompleteRead(b"")

    opened = broken if answer is None else lambda *_, **__: io.BytesIO(answer)
    monkeypatch.setattr("urllib.request.urlopen", opened)
    assert needs_on_pypi("a", "1.0") is None
