"""The planted world behind the synthetic trivago log: items, users and the law by which they click.

A click on list position k (0 = top) is one draw from softmax(u), where

    u_k = quality_k + taste . attributes_k - sensitivity * (price_k / list mean - 1) - position * ln(1 + k)
          + filters * [k has the property filtered for]
          + interacted * ln(1 + visits to k in this session) + last_interacted * [k was the last one visited]
          - reclicked * [k was clicked earlier in this session]

Quality belongs to the item; taste and sensitivity belong to the user's kind, which its platform and device hint at. So
P(click on k | everything before the click) is known, and ranking by it is the best that any model can do.

Each block of users has a random stream of its own, so a block is the same whichever blocks were made before it.
"""

from dataclasses import dataclass

import numpy as np

PLATFORMS = ("AU", "BR", "DE", "ES", "FR", "IN", "IT", "JP", "MX", "TR", "UK", "US")
DEVICES = ("mobile", "desktop", "tablet")
STARS = tuple(f"{n} Star" for n in range(1, 6))
RATINGS = ("Satisfactory Rating", "Good Rating", "Very Good Rating", "Excellent Rating")
AMENITIES = (
    "Beach", "Business Hotel", "Camping Site", "Car Park", "Casino (Hotel)", "Convenience Store", "Family Friendly",
    "Free WiFi (Combined)", "Gym", "Hostel", "Hotel", "House / Apartment", "Luxury Hotel", "Nightclub", "Pet Friendly",
    "Resort", "Restaurant", "Romantic", "Serviced Apartment", "Spa (Wellness Facility)", "Swimming Pool (Bar)",
    "Swimming Pool (Combined Filter)", "Wheelchair Accessible", "WiFi (Public Areas)",
)  # fmt: skip
PROPERTIES = STARS + RATINGS + AMENITIES
SORT_BY_PRICE = len(PROPERTIES)  # the filter that orders the list by price
FILTERS = (*PROPERTIES, "Sort by Price")
SORT_ORDERS = ("interaction sort button", "price only", "price and recommended", "distance and recommended")
ACTIONS = (
    "clickout item", "interaction item image", "interaction item info", "interaction item deals",
    "interaction item rating", "search for item", "search for destination", "search for poi", "filter selection",
    "change of sort order",
)  # fmt: skip
CLICKOUT, IMAGE, INFO, DEALS, RATING, SEARCH_ITEM, SEARCH_CITY, SEARCH_POI, FILTER, SORT = range(len(ACTIONS))

KINDS = 5  # kinds of user
LIST = 25  # the longest list shown
POOL = 40  # items of a city that a session's lists are drawn from
VISITS = 4  # the most items visited before one clickout
MAX_CLICKOUTS = 8
# What may come before a clickout, in this order: destination, poi, filter, sort order, searched item, visits, clickout.
SLOTS = 5 + VISITS + 1
POIS = 500
DAY = 86_400
START = 1_541_030_400  # 1 November 2018, 00:00 UTC
TRAIN_DAYS, DAYS = 6, 8


@dataclass(frozen=True)
class Effects:
    """Sizes of the planted effects, in units of utility (log odds)."""

    quality: float = 0.9
    taste: float = 0.6
    sensitivity: tuple[float, ...] = (0.3, 0.7, 1.1, 1.6, 2.2)  # by kind of user
    position: float = 0.45
    filters: float = 0.8
    interacted: float = 1.3
    last_interacted: float = 1.2
    reclicked: float = 1.0
    searched: float = 1.0  # a searched item is visited, and this on top


@dataclass(frozen=True)
class Catalog:
    """The fixed part of the world. Items of one city are neighbours: start[city] <= item < start[city] + size[city]."""

    item_ids: np.ndarray  # int64, the numbers shown in the log
    quality: np.ndarray  # float64 [items]
    base_price: np.ndarray  # float64 [items]
    attributes: np.ndarray  # bool [items, properties + 1]; the last column, False, stands for "no property"
    start: np.ndarray  # int64 [cities]
    size: np.ndarray  # int64 [cities], primes
    city_share: np.ndarray  # float64 [cities], sums to 1
    taste: np.ndarray  # float64 [kinds, items], already multiplied with the attributes
    favourites: np.ndarray  # int64 [kinds, 4], the properties that a kind filters for
    kind_given_platform: np.ndarray  # float64 [platforms, kinds]


def _primes_up_to(limit: int) -> np.ndarray:
    sieve = np.ones(limit + 1, dtype=bool)
    sieve[:2] = False
    for n in range(2, int(limit**0.5) + 1):
        sieve[n * n :: n] &= not sieve[n]
    return np.flatnonzero(sieve)


def _city_sizes(rng: np.random.Generator, items: int, smallest: int) -> np.ndarray:
    """Prime city sizes from `smallest`, heavy-tailed, that add up to at least `items`."""
    primes = _primes_up_to(2_000)
    primes = primes[primes >= smallest]
    wanted = np.minimum(12 + 60 * rng.pareto(1.5, size=items // 40 + 2), 1_900).astype(np.int64)
    sizes = primes[np.searchsorted(primes, wanted)]
    return sizes[: int(np.searchsorted(np.cumsum(sizes), items)) + 1]


def _attributes(rng: np.random.Generator, stars: np.ndarray, quality: np.ndarray) -> np.ndarray:
    """bool [items, properties + 1]: one star level, a rating that follows quality loosely, amenities by stars."""
    items = len(stars)
    rating = np.digitize(quality + rng.normal(size=items), (-0.8, 0.0, 0.8))
    base = rng.uniform(-2.2, 1.0, size=len(AMENITIES))
    slope = rng.normal(scale=0.5, size=len(AMENITIES))
    chance = 1 / (1 + np.exp(-(base + slope * (stars[:, None] - 2.0))))
    return np.concatenate(
        [
            stars[:, None] == np.arange(len(STARS)),
            rating[:, None] == np.arange(len(RATINGS)),
            rng.random((items, len(AMENITIES))) < chance,
            np.zeros((items, 1), dtype=bool),
        ],
        axis=1,
    )


def _tastes(rng: np.random.Generator, attributes: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Taste of every kind for every item, centred with standard deviation `scale`, and each kind's favourites."""
    weights = np.where(rng.random((KINDS, len(PROPERTIES))) < 0.35, rng.normal(size=(KINDS, len(PROPERTIES))), 0.0)
    weights[:, : len(STARS)] = np.linspace(-1, 1, KINDS)[:, None] * np.linspace(-1.5, 1.5, len(STARS))
    raw = weights @ attributes[:, : len(PROPERTIES)].T.astype(np.float64)
    spread = raw.std(axis=1, keepdims=True)
    taste = scale * (raw - raw.mean(axis=1, keepdims=True)) / np.where(spread > 0, spread, 1.0)
    return taste, np.argsort(-weights, axis=1, kind="stable")[:, :4]


def make_catalog(num_items: int, seed: int, effects: Effects, smallest_city: int = 7) -> Catalog:
    """At least `num_items` items in cities of `smallest_city` to 1,901, with properties, prices, planted quality."""
    rng = np.random.default_rng([seed, 0])
    size = _city_sizes(rng, num_items, smallest_city)
    items = int(size.sum())
    stars = np.digitize(rng.normal(size=items), (-1.3, -0.6, 0.3, 1.2))
    quality = effects.quality * rng.normal(size=items)
    attributes = _attributes(rng, stars, quality / effects.quality if effects.quality else quality)
    taste, favourites = _tastes(rng, attributes, effects.taste)
    share = size * rng.gamma(2.0, size=len(size))
    own_kind = np.arange(len(PLATFORMS)) % KINDS
    return Catalog(
        # A walk around a prime ring: distinct, and unrelated to the order of cities.
        item_ids=5_001 + (np.arange(items) * 7_368_787 + 1_234_567 * (1 + seed)) % 10_000_019,
        quality=quality,
        base_price=26 * 1.4**stars * np.exp(rng.normal(scale=0.35, size=items)),
        attributes=attributes,
        start=np.cumsum(size) - size,
        size=size,
        city_share=share / share.sum(),
        taste=taste,
        favourites=favourites,
        kind_given_platform=0.75 * (own_kind[:, None] == np.arange(KINDS)) + 0.25 / KINDS,
    )


def list_utility(
    quality: np.ndarray, taste: np.ndarray, price: np.ndarray, sensitivity: np.ndarray, effects: Effects
) -> np.ndarray:
    """Utility of each shown candidate before filters and history; `price` is NaN where nothing is shown."""
    against_mean = price / np.nanmean(price, axis=1, keepdims=True) - 1
    position = effects.position * np.log1p(np.arange(price.shape[1]))
    return quality + taste - sensitivity[:, None] * against_mean - position


def click_probability(utility: np.ndarray, shown: np.ndarray) -> np.ndarray:
    """Softmax over the shown candidates of each row, 0 elsewhere."""
    utility = np.where(shown, utility, -np.inf)
    weight = np.exp(utility - utility.max(axis=1, keepdims=True))
    return weight / weight.sum(axis=1, keepdims=True)
