"""What the server that ranks are forked from imports beside the package: compiled loops then load at once.

At its first call of a loop each process would import numba's registries, some 50 modules and SciPy's linear algebra,
which takes two seconds. No loop runs here: a child of a process that has run one may run none.
"""

from numba.core.registry import cpu_target

cpu_target.typing_context.refresh()
cpu_target.target_context.refresh()
