"""Words, signs and typographic quotes, dashes and blanks that steps of texts are tried on."""

SAID = [
    "Red", "shoes", "of", "Straße", "a", "x-large", "3,5", "colours", "鞋", "!", "“quoted”", "»ja«", "don’t", "‚a‘",
    "two–three", "¿qué?", "end…", "a\u00a0b",
]  # fmt: skip
