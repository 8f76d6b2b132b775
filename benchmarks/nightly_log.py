"""A made-up travel site, day by day, as a log in the format of the RecSys Challenge 2019 (trivago).

A click on place k of a list of eight is one draw from softmax(u),

    u_k = quality_k(day) + 1.2 [k was looked at before] - sensitivity * (price_k / list mean - 1) - .8 ln(1 + k)

Every day brings new users and new items. The quality of an item moves up and down in 45 days, each item at its own
time, so a model that is never trained again falls behind. From the day of the change on, most users come by mobile
phone, and those who looked at prices least look at them most.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gigabatch.features.recipes.trivago.log import CLICKOUT, LOG, VIEWS

START, DAY = 1_767_225_600, 86_400  # 1 January 2026, 00:00 UTC
CITIES = tuple(f"{name}, {country}" for country in ("Peru", "Norway", "Japan", "Kenya") for name in
               ("Lindon", "Varberg", "Oster", "Monta", "Salun"))  # fmt: skip
PLATFORMS, DEVICES = ("BR", "DE", "JP", "UK", "US"), ("desktop", "mobile", "tablet")
SENSITIVITY = np.array([0.2, 0.8, 1.5, 2.2, 3.0])  # by kind of user
DEVICE_SHARES = {False: (0.55, 0.35, 0.1), True: (0.15, 0.8, 0.05)}  # after the change: True
LIST = 8
FIRST_ITEMS, NEW_ITEMS = 15, 4  # of each city at first; of all cities a day
NEW_USERS = 0.35  # of the sessions of a day


@dataclass(frozen=True)
class Day:
    """One day's file: its text, its log rows, and the pairs of clickout and item that a features stage makes of it."""

    text: bytes
    rows: int
    pairs: int


class World:
    """Users and items so far; `day` makes the days one after the other. changed: the first day of the change."""

    def __init__(self, rows: int, seed: int, changed: int | None = None) -> None:
        self.rows, self.seed, self.changed = rows, seed, changed
        self.next = 1
        random = np.random.default_rng([seed, 0])
        self.items: dict[str, list[int]] = {name: [] for name in CITIES}
        self.quality, self.phase, self.price = np.zeros(0), np.zeros(0), np.zeros(0)
        self._add_items(random, np.repeat(np.arange(len(CITIES)), FIRST_ITEMS))
        self.users: list[tuple[str, int, str]] = []  # name, kind, home

    def _add_items(self, random: np.random.Generator, cities: np.ndarray) -> None:
        for place, city in enumerate(cities, start=len(self.quality)):
            self.items[CITIES[city]].append(place)
        number = len(cities)
        self.quality = np.append(self.quality, random.normal(0, 0.7, number))
        self.phase = np.append(self.phase, random.uniform(0, 2 * np.pi, number))
        self.price = np.append(self.price, 90 * np.exp(random.normal(0, 0.35, number)))

    def day(self, inverted: bool = False) -> Day:
        """The next day. inverted: each click falls on the item that it would have fallen on least."""
        number, self.next = self.next, self.next + 1
        random = np.random.default_rng([self.seed, number])
        changed = self.changed is not None and number >= self.changed
        self._add_items(random, random.integers(len(CITIES), size=NEW_ITEMS))
        quality = self.quality + 0.9 * np.sin(2 * np.pi * number / 45 + self.phase)
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(LOG)
        wanted, rows, pairs, session = self.rows * random.uniform(0.95, 1.05), 0, 0, 0
        while rows < wanted:
            session += 1
            if not self.users or random.random() < NEW_USERS:
                home = CITIES[random.integers(len(CITIES))]
                self.users.append((f"U{len(self.users):07d}", int(random.integers(5)), home))
            user, kind, home = self.users[random.integers(len(self.users))] if session % 3 else self.users[-1]
            city = home if random.random() < 0.7 else CITIES[random.integers(len(CITIES))]
            platform = PLATFORMS[kind if random.random() < 0.7 else random.integers(5)]
            device = random.choice(DEVICES, p=DEVICE_SHARES[changed])
            sensitivity = SENSITIVITY[4 - kind if changed else kind]
            moment, step = START + number * DAY + int(random.uniform(0, 0.97) * DAY), 0
            for _ in range(1 + int(random.random() < 0.4)):
                items = random.choice(self.items[city], LIST, replace=False)
                prices = np.maximum(np.round(self.price[items] * np.exp(random.normal(0, 0.2, LIST))), 10).astype(int)
                seen = random.choice(LIST, random.integers(3), replace=False)
                utility = quality[items] - sensitivity * (prices / prices.mean() - 1) - 0.8 * np.log1p(np.arange(LIST))
                utility[seen] += 1.2
                click = items[np.argmax((-1 if inverted else 1) * utility + random.gumbel(size=LIST))]
                for action, item in [*((VIEWS[0], items[k]) for k in seen), (CLICKOUT, click)]:
                    step, moment = step + 1, moment + int(random.integers(5, 90))
                    shown = ["|".join(str(5001 + i) for i in items), "|".join(map(str, prices))]
                    lists = shown if action == CLICKOUT else ["", ""]
                    where = (platform, city, device, "")
                    writer.writerow(
                        [user, f"S{number:03d}-{session:05d}", moment, step, action, 5001 + item, *where, *lists]
                    )
                    rows += 1
                pairs += LIST
        return Day(file.getvalue().encode(), rows, pairs)


def write_test_file(path: Path) -> None:
    """The test file of the challenge, which stays the same: one clickout before all days, whose click is not told."""
    items = "|".join(str(5001 + i) for i in range(LIST))
    prices = "|".join(["100"] * LIST)
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(LOG)
        writer.writerow(["T1", "T1-1", START, 1, CLICKOUT, "", "DE", CITIES[0], "desktop", "", items, prices])
