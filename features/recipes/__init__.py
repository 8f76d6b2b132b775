"""The recipes by name. To add a data set: write a `Recipe` in this folder and name it here; or register one of your own
(`register_recipe`, docs/own_code.md)."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from gigabatch.features.errors import DataError
from gigabatch.own_code import Kind, Registry, obstacle_of

if TYPE_CHECKING:
    from gigabatch.features.recipes.base import Recipe

RECIPES = {
    "flights": "gigabatch.features.recipes.flights.recipe:FlightsRecipe",
    "interactions": "gigabatch.features.recipes.interactions.recipe:InteractionsRecipe",
    "movielens": "gigabatch.features.recipes.movielens.recipe:MovieLensRecipe",
    "table": "gigabatch.features.recipes.table.recipe:TableRecipe",
    "trivago": "gigabatch.features.recipes.trivago.recipe:TrivagoRecipe",
}


def require_recipe(name: str) -> None:
    """Raise `DataError` unless there is a recipe of that name; none is imported."""
    if name not in RECIPES and name not in OWN.names():
        known = ", ".join(sorted([*RECIPES, *OWN.names()]))
        raise DataError(f"recipe: unknown recipe {name!r}. Known: {known}.")


def recipe_class(name: str) -> type[Recipe]:
    """The recipe of that name."""
    require_recipe(name)
    if name not in RECIPES:
        found: type[Recipe] = OWN.find(name)
        return found
    module, _, attribute = RECIPES[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def register_recipe(name: str) -> Callable[[Kind], Kind]:
    """Make a recipe of your own known to `recipe` of a configuration; docs/own_code.md.

    Parameters
    ----------
    name
        What a configuration calls it: lower-case letters, digits and `_`.

    Returns
    -------
    decorator
        For a subclass of `Recipe` with a frozen dataclass `Settings`, which it returns. The source of the class's file
        is part of the key of its features.

    Raises
    ------
    DataError
        The name is taken, or the class is no recipe.

    Examples
    --------
    >>> from gigabatch import register_recipe
    >>> register_recipe("table")(dict)
    Traceback (most recent call last):
    ...
    gigabatch.features.errors.DataError: register_recipe 'table': gigabatch has a recipe of this name. Choose another.
    """
    return OWN.decorator(name)


def _obstacle(kind: type) -> str | None:
    from gigabatch.features.recipes.base import Recipe

    home = "Recipe of gigabatch.features.recipes.base"
    if (found := obstacle_of(kind, Recipe, "recipe", home, "features")) is not None:
        return found
    missing = ", ".join(sorted(getattr(kind, "__abstractmethods__", ())))
    return f"lacks {missing}, which a recipe needs." if missing else None


OWN = Registry("recipe", DataError, lambda: RECIPES, _obstacle)
