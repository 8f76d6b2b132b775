"""Whether the pins of constraints.txt can be installed beside each other, also where PyPI's torch is the CUDA build.

The CPU build of torch, which `make setup` takes first, asks for less than PyPI's: a pin that only that one allows is
found by nobody who has it, and stops everybody who has not.
"""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from email import message_from_bytes
from http.client import HTTPException
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PINS = Path(__file__).resolve().parents[1] / "constraints.txt"
AS_JSON = "application/vnd.pypi.simple.v1+json"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
Needs = Callable[[str, str], list[str] | None]


def read_pins(text: str) -> dict[str, str]:
    """Versions by name.

    >>> read_pins("# why\\nTorch==2.13.0\\nnumpy==2.4.6   # because\\n")
    {'torch': '2.13.0', 'numpy': '2.4.6'}
    """
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    pairs = (line.split("==") for line in lines if line)
    return {canonicalize_name(name.strip()): version.strip() for name, version in pairs}


def needs_on_pypi(name: str, version: str) -> list[str] | None:
    """What a release needs, as its wheel for Linux says; None where PyPI, or a mirror of it, does not tell."""
    index = urllib.request.Request(f"https://pypi.org/simple/{name}/", headers={"Accept": AS_JSON})
    try:
        with urllib.request.urlopen(index, timeout=60) as answer:
            files = json.load(answer)["files"]
        spelt = "[-_.]".join(map(re.escape, name.split("-")))
        own = re.compile(rf"{spelt}-{re.escape(version)}-.*(linux\w*_x86_64|-any)[.]whl", re.IGNORECASE)
        wheel = next((file for file in files if own.fullmatch(file["filename"])), None)
        if wheel is None:
            return None
        with urllib.request.urlopen(f"{wheel['url']}.metadata", timeout=60) as answer:
            return message_from_bytes(answer.read()).get_all("Requires-Dist", [])
    except (OSError, HTTPException, ValueError, LookupError, TypeError):  # none, or no JSON
        return None


def conflicts(pins: Mapping[str, str], needs: Needs = needs_on_pypi) -> tuple[list[str], list[str]]:
    """A line for each pin that another pin does not allow, on Linux and x86-64; and names of which nobody knows.

    >>> of_torch = lambda name, version: ["triton==3.7.1"] if name == "torch" else None
    >>> conflicts({"torch": "2.13.0", "triton": "3.6.0"}, of_torch)
    (['torch 2.13.0 needs triton==3.7.1, and the pin is 3.6.0'], ['triton'])
    """
    with ThreadPoolExecutor(8) as pool:
        found = dict(zip(pins, pool.map(needs, pins, pins.values()), strict=True))
    lines = []
    for name, texts in found.items():
        for need in map(Requirement, texts or ()):
            pin = pins.get(canonicalize_name(need.name))
            if pin is not None and _is_meant(need) and not need.specifier.contains(pin, prereleases=True):
                lines.append(f"{name} {pins[name]} needs {need.name}{need.specifier}, and the pin is {pin}")
    return lines, [name for name, texts in found.items() if texts is None]


def _is_meant(need: Requirement) -> bool:
    of_linux = {"extra": "", "sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64"}
    return need.marker is None or any(
        need.marker.evaluate({**of_linux, "python_version": version, "python_full_version": f"{version}.0"})
        for version in PYTHONS
    )


if __name__ == "__main__":
    lines, unknown = conflicts(read_pins(PINS.read_text()))
    print("\n".join(lines) or "No pin of constraints.txt rules another one out.")
    if unknown:
        print(f"Not known, as PyPI did not tell: {', '.join(unknown)}.")
    sys.exit(bool(lines))
