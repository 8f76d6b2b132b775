"""Values as YAML reads them back."""

from __future__ import annotations

import json
import re
from typing import Any

PLAIN = re.compile(r"[^\W\d][\w-]*( [\w-]+)*")
WORDS = ("y", "n", "yes", "no", "on", "off", "true", "false", "null", "none")


def scalar(value: Any) -> str:
    """A value as YAML that is read back as it is.

    >>> scalar("hours-per-week"), scalar("no"), scalar("größe: m"), scalar(True), scalar(0.5)
    ('hours-per-week', '"no"', '"größe: m"', 'true', '0.5')
    """
    if isinstance(value, str):
        if PLAIN.fullmatch(value) and value.lower() not in WORDS and value.isprintable():
            return value
        quoted = json.dumps(value, ensure_ascii=False, allow_nan=False)
        # JSON would write the letters from U+10000 on as two halves, which YAML takes for two letters.
        return "".join(letter if letter.isprintable() else f"\\U{ord(letter):08x}" for letter in quoted)
    return json.dumps(value, allow_nan=False)
