"""What a fit that fails leaves behind: nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

Method = TypeVar("Method", bound=Callable[..., Any])


def keeps_last_fit(method: Method) -> Method:
    """Decorate a method that fits its object: where it raises, the object's attributes are those of before.

    An attribute must be set anew, not changed in place.
    """

    @wraps(method)
    def kept(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = dict(vars(self))
        try:
            return method(self, *args, **kwargs)
        except BaseException:  # an interrupt too
            vars(self).update(before)  # first, as another thread may transform with the last fit meanwhile
            for name in set(vars(self)) - set(before):
                delattr(self, name)
            raise

    return kept  # type: ignore[return-value]
