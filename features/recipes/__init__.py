"""The recipes by name. To add a data set: write a `Recipe` in this folder and name it here."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from gigabatch.features.errors import DataError

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
    if name not in RECIPES:
        raise DataError(f"recipe: unknown recipe {name!r}. Known: {', '.join(sorted(RECIPES))}.")


def recipe_class(name: str) -> type[Recipe]:
    """The recipe of that name."""
    require_recipe(name)
    module, _, attribute = RECIPES[name].partition(":")
    return getattr(importlib.import_module(module), attribute)
