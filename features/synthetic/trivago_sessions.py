"""One block of users' sessions in the planted world of `trivago_world`, as arrays of codes.

A session is a row of segments; a segment is what leads to one clickout (searches, a filter, a sort order, visits to
items) and the clickout. Segments are made one after the other, all sessions of the block at once, because what was
visited and clicked before bears on the next click.
"""

from dataclasses import dataclass, fields

import numpy as np

from gigabatch.features.synthetic import trivago_world as world
from gigabatch.features.synthetic.trivago_world import Catalog, Effects

BLOCK_USERS = 2_048
FILTER_SLOT = 2  # rows of a segment from this slot on see its filter
VISIT_ACTIONS = (world.IMAGE, world.INFO, world.DEALS, world.RATING)
VISIT_SHARES = (0.75, 0.1, 0.1, 0.05)
SESSION_SLOTS = 1 << 16  # session numbers reserved for a block
HIDDEN_SHARE = 0.5  # of test sessions that end in a clickout
NULL_REFERENCE_SHARE = 0.001  # of item visits, as happens in the official test file


@dataclass
class Rows:
    """Log rows in file order; every array is int64 [rows]."""

    user: np.ndarray  # number within the block
    session: np.ndarray  # number within the block
    timestamp: np.ndarray  # seconds
    step: np.ndarray  # from 1 in every session
    action: np.ndarray  # into ACTIONS
    reference: np.ndarray  # into the table of `reference_names`, -1 for null
    city: np.ndarray
    filters: np.ndarray  # digits in base len(FILTERS) + 1, first filter first, 0 for none
    clickout: np.ndarray  # into Clickouts, -1 for other actions


@dataclass
class Clickouts:
    """Clickouts in the order of their rows."""

    items: np.ndarray  # int64 [clickouts, LIST]
    prices: np.ndarray  # int64 [clickouts, LIST]
    length: np.ndarray  # int64 [clickouts]; entries of a list from there on mean nothing
    clicked: np.ndarray  # int64 [clickouts], position from 0
    probability: np.ndarray  # float64 [clickouts, LIST], 0 from `length` on
    hidden: np.ndarray  # bool [clickouts]: the reference is kept out of test.csv


@dataclass
class Block:
    """`platform`, `device`: int64 [users]; `in_test`: bool [sessions]; `session_number`: uint64 [sessions]."""

    rows: Rows
    clickouts: Clickouts
    platform: np.ndarray
    device: np.ndarray
    in_test: np.ndarray
    session_number: np.ndarray

    def head(self, num_rows: int) -> "Block":
        """The first `num_rows` rows and their clickouts."""
        rows = Rows(*(getattr(self.rows, f.name)[:num_rows] for f in fields(Rows)))
        kept = int((rows.clickout >= 0).sum())
        clickouts = Clickouts(*(getattr(self.clickouts, f.name)[:kept] for f in fields(Clickouts)))
        return Block(rows, clickouts, self.platform, self.device, self.in_test, self.session_number)


class BlockSimulator:
    """The running state of every session of a block. Arrays named [S] have one entry a session."""

    def __init__(self, catalog: Catalog, effects: Effects, seed: int, block: int, noise_labels: bool):
        self.catalog, self.effects, self.noise_labels = catalog, effects, noise_labels
        self.rng = rng = np.random.default_rng([seed, 1, block])
        self.platform = rng.integers(len(world.PLATFORMS), size=BLOCK_USERS)
        chance = np.cumsum(catalog.kind_given_platform, axis=1)[self.platform]
        kind = (rng.random(BLOCK_USERS)[:, None] > chance[:, :-1]).sum(axis=1)
        # Half of the users take the device that their kind prefers.
        self.device = np.where(rng.random(BLOCK_USERS) < 0.5, kind % 3, rng.integers(3, size=BLOCK_USERS))
        self.user = np.repeat(np.arange(BLOCK_USERS), rng.geometric(0.5, size=BLOCK_USERS))
        sessions = len(self.user)
        assert sessions < SESSION_SLOTS
        self.kind = kind[self.user]
        self.sensitivity = np.asarray(effects.sensitivity)[self.kind]
        self.num_clickouts = np.minimum(rng.geometric(0.55, size=sessions), world.MAX_CLICKOUTS)
        self.num_segments = self.num_clickouts + (rng.random(sessions) < 0.12)  # some look on after the last clickout
        self.start = world.START + self._start_seconds(sessions)
        home = rng.choice(len(catalog.size), p=catalog.city_share, size=BLOCK_USERS)[self.user]
        away = rng.choice(len(catalog.size), p=catalog.city_share, size=sessions)
        self.city = np.where(rng.random(sessions) < 0.5, home, away)
        self.pool = np.full((sessions, world.POOL), -1)  # items, -1 where the city is smaller than the pool
        self.visits = np.zeros((sessions, world.POOL))
        self.searched = np.zeros((sessions, world.POOL), dtype=bool)
        self.clicked = np.zeros((sessions, world.POOL), dtype=bool)
        self.last = np.full(sessions, -1)  # column of the pool
        self.filters = np.full((sessions, 3), -1)
        self.first_reference = np.cumsum([0, len(catalog.quality), len(catalog.size), world.POIS, len(world.FILTERS)])

    def _start_seconds(self, sessions: int) -> np.ndarray:
        day = self.rng.integers(world.DAYS, size=sessions)
        # More sessions in the evening: a triangle with its peak at 20:00 UTC.
        return (world.DAY * (day + self.rng.triangular(0.0, 20 / 24, 1.0, size=sessions))).astype(np.int64)

    def _arrive(self, s: np.ndarray) -> None:
        """Sessions `s` start in their city: draw the pool of items, forget what happened elsewhere."""
        size = self.catalog.size[self.city[s], None]
        # Any stride visits distinct items, because the size is prime.
        stride = 1 + (self.rng.random((len(s), 1)) * (size - 1)).astype(np.int64)
        walk = (self.rng.integers(size) + stride * np.arange(world.POOL)) % size
        self.pool[s] = np.where(np.arange(world.POOL) < size, self.catalog.start[self.city[s], None] + walk, -1)
        self.visits[s], self.searched[s], self.clicked[s], self.last[s] = 0, False, False, -1

    def _add_filter(self, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A filter for some of `s`: (whether one was set, which)."""
        favourite = self.catalog.favourites[self.kind[s], self.rng.integers(4, size=len(s))]
        anything = self.rng.integers(len(world.FILTERS), size=len(s))
        chosen = np.where(self.rng.random(len(s)) < 0.7, favourite, anything)
        free = (self.filters[s] < 0).sum(axis=1)
        fresh = (self.filters[s] != chosen[:, None]).all(axis=1)
        sets = (self.rng.random(len(s)) < 0.15) & (free > 0) & fresh
        self.filters[s[sets], 3 - free[sets]] = chosen[sets]
        return sets, chosen

    def _search_item(self, s: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
        """A searched item for some of `s`: (whether one was, column of the pool)."""
        liking = (not self.noise_labels) * self.catalog.quality[self.pool[s]] + self.rng.gumbel(size=self.pool[s].shape)
        column = np.argmax(np.where(self.pool[s] >= 0, liking, -np.inf), axis=1)
        searches = self.rng.random(len(s)) < share
        where = s[searches], column[searches]
        self.visits[where] += 1
        self.searched[where] = True
        self.last[s[searches]] = column[searches]
        return searches, column

    def _show(self, s: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The list that is shown: (columns of the pool, prices, length). The site ranks by a noisy view of quality."""
        pool, rng = self.pool[s], self.rng
        noise = rng.normal(size=pool.shape)
        score = 0.5 * self.catalog.quality[pool] + noise + (self.visits[s] > 0) + 99.0 * self.searched[s]
        order = np.argsort(np.where(pool >= 0, -score, np.inf), axis=1, kind="stable")[:, : world.LIST]
        usual = (rng.random(len(s)) < 0.85) | self.noise_labels
        length = np.minimum(
            np.where(usual, world.LIST, rng.integers(5, world.LIST, size=len(s))), (pool >= 0).sum(axis=1)
        )
        base = self.catalog.base_price[np.take_along_axis(pool, order, axis=1)]
        prices = np.maximum(5, np.rint(base * np.exp(rng.normal(scale=0.2, size=base.shape)))).astype(np.int64)
        by_price = (self.filters[s] == world.SORT_BY_PRICE).any(axis=1)[:, None]
        unseen = np.arange(world.LIST) >= length[:, None]
        again = np.argsort(np.where(unseen, np.inf, np.where(by_price, prices, 0)), axis=1, kind="stable")
        return np.take_along_axis(order, again, axis=1), np.take_along_axis(prices, again, axis=1), length

    def _own_utility(self, s: np.ndarray, columns: np.ndarray, prices: np.ndarray, shown: np.ndarray) -> np.ndarray:
        """Utility before this session's visits; zeros when labels are to be noise."""
        if self.noise_labels:
            return np.zeros(columns.shape)
        items = np.take_along_axis(self.pool[s], columns, axis=1)
        price = np.where(shown, prices, np.nan)
        taste = self.catalog.taste[self.kind[s, None], items]
        own = world.list_utility(self.catalog.quality[items], taste, price, self.sensitivity[s], self.effects)
        wanted = self.filters[s]
        matched = self.catalog.attributes[items[:, :, None], wanted[:, None, :]].sum(axis=2)
        properties = ((wanted >= 0) & (wanted != world.SORT_BY_PRICE)).sum(axis=1, keepdims=True)
        return own + self.effects.filters * matched / np.maximum(properties, 1)

    def _visit(
        self, s: np.ndarray, columns: np.ndarray, own: np.ndarray, shown: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Items looked at before the click: (number [n], columns of the pool [n, VISITS] in order)."""
        rng = self.rng
        number = np.where(rng.random(len(s)) < 0.35, 0, 1 + np.minimum(rng.poisson(1.2, size=len(s)), world.VISITS - 1))
        number = np.minimum(number, shown.sum(axis=1))
        keys = np.where(shown, 0.8 * own + rng.gumbel(size=own.shape), -np.inf)  # the best keys: a draw without return
        seen = np.take_along_axis(columns, np.argsort(-keys, axis=1, kind="stable")[:, : world.VISITS], axis=1)
        for k in range(world.VISITS):
            on = number > k
            self.visits[s[on], seen[on, k]] += 1
            self.last[s[on]] = seen[on, k]
        return number, seen

    def _click(
        self, s: np.ndarray, columns: np.ndarray, own: np.ndarray, shown: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """One click on every list: (position, probability of every position)."""
        utility, effects = own, self.effects
        if not self.noise_labels:
            visits, clicked, searched = (
                np.take_along_axis(state[s], columns, axis=1) for state in (self.visits, self.clicked, self.searched)
            )
            utility = own + effects.interacted * np.log1p(visits) + effects.searched * searched
            utility = utility + effects.last_interacted * (columns == self.last[s, None]) - effects.reclicked * clicked
        probability = world.click_probability(utility, shown)
        reached = np.cumsum(probability, axis=1) < self.rng.random((len(s), 1))
        position = np.minimum(reached.sum(axis=1), shown.sum(axis=1) - 1)
        self.clicked[s, columns[np.arange(len(s)), position]] = True
        return position, probability

    def _leading(self, s: np.ndarray, j: int, moves: np.ndarray) -> list[tuple]:
        """What precedes the visits, in slot order: (action, whether it happens, reference)."""
        rng, first = self.rng, self.first_reference
        sets, chosen = self._add_filter(s)
        searches, sought = self._search_item(s, 0.2 if j == 0 else 0.03)
        arrives = np.where(j == 0, rng.random(len(s)) < 0.5, moves)
        sort_order = rng.integers(len(world.SORT_ORDERS), size=len(s))
        return [
            (world.SEARCH_CITY, arrives, first[1] + self.city[s]),
            (world.SEARCH_POI, rng.random(len(s)) < 0.04, first[2] + self.city[s] % world.POIS),
            (world.FILTER, sets, first[3] + chosen),
            (world.SORT, rng.random(len(s)) < 0.12, first[4] + sort_order),
            (world.SEARCH_ITEM, searches, self.pool[s, sought]),
        ]

    def segment(self, j: int) -> dict[str, np.ndarray]:
        """Segment `j` of every session that has one: its slots of log rows, and the list and click that end it."""
        rng = self.rng
        s = np.flatnonzero(self.num_segments > j)
        moves = np.ones(len(s), dtype=bool) if j == 0 else rng.random(len(s)) < 0.07
        if j:
            self.city[s[moves]] = rng.choice(len(self.catalog.size), p=self.catalog.city_share, size=int(moves.sum()))
        self._arrive(s[moves])
        filters_before = self._filter_digits(s)
        leading = self._leading(s, j, moves)
        columns, prices, length = self._show(s)
        shown = np.arange(world.LIST) < length[:, None]
        own = self._own_utility(s, columns, prices, shown)
        number, seen = self._visit(s, columns, own, shown)
        position, probability = self._click(s, columns, own, shown)

        kinds = rng.choice(VISIT_ACTIONS, p=VISIT_SHARES, size=seen.shape)
        bursts = np.where(kinds == world.IMAGE, rng.geometric(1 / 8, size=kinds.shape), 1)
        items = np.take_along_axis(self.pool[s], columns, axis=1)
        clickout = (world.CLICKOUT, self.num_clickouts[s] > j, items[np.arange(len(s)), position])
        visited = [
            (kinds[:, k], np.where(number > k, bursts[:, k], 0), self.pool[s, seen[:, k]]) for k in range(world.VISITS)
        ]
        slots = [np.broadcast_arrays(*slot) for slot in (*leading, *visited, clickout)]
        actions, counts, references = (np.stack(part, axis=1).astype(np.int64) for part in zip(*slots, strict=True))
        return {
            "session": s, "segment": np.full(len(s), j), "city": self.city[s], "filters_before": filters_before,
            "filters": self._filter_digits(s), "counts": counts, "actions": actions, "references": references,
            "items": items, "prices": prices, "length": length, "clicked": position, "probability": probability,
        }  # fmt: skip

    def _filter_digits(self, s: np.ndarray) -> np.ndarray:
        digits = np.zeros(len(s), dtype=np.int64)
        for chosen in self.filters[s].T:
            digits = np.where(chosen >= 0, digits * (len(world.FILTERS) + 1) + chosen + 1, digits)
        return digits


def session_numbers(seed: int, block: int, sessions: int) -> np.ndarray:
    """uint64 [sessions]: distinct 52-bit numbers that look drawn at random, from a bijection on 52 bits."""
    mask = np.uint64((1 << 52) - 1)
    x = np.arange(sessions, dtype=np.uint64) + np.uint64(block * SESSION_SLOTS + (seed << 40) % (1 << 52))
    for multiplier in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
        x = (x * np.uint64(multiplier)) & mask
        x ^= x >> np.uint64(26)
    return x


def _row_times(rng: np.random.Generator, slot: np.ndarray, session_start: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Seconds: `start` [rows] plus pauses, short within a burst of the same slot and longer before a new one."""
    new_slot = np.diff(slot, prepend=-1) != 0
    pause = np.where(new_slot, rng.geometric(1 / 25, size=len(slot)), rng.geometric(1 / 4, size=len(slot)) - 1)
    elapsed = np.cumsum(pause)
    return start + elapsed - elapsed[session_start]


def simulate_block(catalog: Catalog, effects: Effects, seed: int, block: int, noise_labels: bool = False) -> Block:
    """Block number `block` of `BLOCK_USERS` users; rows ordered by user, session id and step, as the official files."""
    sim = BlockSimulator(catalog, effects, seed, block, noise_labels)
    parts = [sim.segment(j) for j in range(int(sim.num_segments.max()))]
    seg = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    number = session_numbers(seed, block, len(sim.user))
    order = np.lexsort((seg["segment"], number[seg["session"]], sim.user[seg["session"]]))
    seg = {name: values[order] for name, values in seg.items()}

    slot = np.repeat(np.arange(seg["counts"].size), seg["counts"].ravel())
    of = slot // world.SLOTS  # segment of each row
    session = seg["session"][of]
    new_session = np.diff(session, prepend=-1) != 0
    session_start = np.maximum.accumulate(np.where(new_session, np.arange(len(slot)), 0))
    action, reference = seg["actions"].ravel()[slot], seg["references"].ravel()[slot]
    is_clickout = action == world.CLICKOUT
    in_test = sim.start >= world.START + world.TRAIN_DAYS * world.DAY
    visit = (action >= world.IMAGE) & (action <= world.RATING)
    lost = visit & in_test[session] & (sim.rng.random(len(slot)) < NULL_REFERENCE_SHARE)
    rows = Rows(
        user=sim.user[session],
        session=session,
        timestamp=_row_times(sim.rng, slot, session_start, sim.start[session]),
        step=1 + np.arange(len(slot)) - session_start,
        action=action,
        reference=np.where(lost, -1, reference),
        city=seg["city"][of],
        filters=np.where(slot % world.SLOTS < FILTER_SLOT, seg["filters_before"][of], seg["filters"][of]),
        clickout=np.where(is_clickout, np.cumsum(is_clickout) - 1, -1),
    )
    ends_session = np.append(new_session[1:], True)[is_clickout]
    hidden = ends_session & in_test[session[is_clickout]] & (sim.rng.random(is_clickout.sum()) < HIDDEN_SHARE)
    of_click = of[is_clickout]
    lists = {name: seg[name][of_click] for name in ("items", "prices", "length", "clicked", "probability")}
    return Block(rows, Clickouts(**lists, hidden=hidden), sim.platform, sim.device, in_test, number)
