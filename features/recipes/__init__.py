"""The recipes by name. To add a data set: write a `Recipe` in this folder and name it here."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from features.errors import DataError

if TYPE_CHECKING:
    from features.recipes.base import Recipe

RECIPES = {
    "flights": "features.recipes.flights:FlightsRecipe",
    "interactions": "features.recipes.interactions:InteractionsRecipe",
    "movielens": "features.recipes.movielens:MovieLensRecipe",
    "table": "features.recipes.table:TableRecipe",
    "trivago": "features.recipes.trivago:TrivagoRecipe",
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
