"""Writes fastai_export.json: what docs/migrating.md's snippet exports from real fastai, and what its procs then give.

Run in an environment with fastai (made with 2.8.12 on pandas 2.3.3):
    python tests/features/importers/data/make_fastai_export.py
"""

import json
import re
import tempfile
from pathlib import Path

import fastai
import pandas as pd
from fastai.tabular.core import Categorify, FillMissing, Normalize, TabularPandas

HERE = Path(__file__).resolve().parent
SNIPPET = re.search(
    r"<!-- fastai export -->\n```python\n(.*?)```", (HERE.parents[2] / "docs/migrating.md").read_text(), re.S
)
TRAIN = {"city": ["Rome", None, "Bonn", "Rome", "Ä"], "shop": [30, 10, 30, 20, 10],
         "price": [1.0, None, 3.0, 7.5, -1.0], "age": [1.0, 2.0, 3.0, 4.0, 5.0]}  # fmt: skip
ROWS = {"city": ["Bonn", None, "Oslo", "Rome", "Ä"], "shop": [10, 20, 99, 30, 30],
        "price": [None, 2.0, 3.0, 7.5, -1.0], "age": [1.0, 2.0, 3.0, 4.0, 9.0]}  # fmt: skip

to = TabularPandas(pd.DataFrame(TRAIN), [Categorify, FillMissing, Normalize], ["city", "shop"], ["price", "age"])
with tempfile.TemporaryDirectory() as folder:
    exec(SNIPPET[1].replace("fastai.json", f"{folder}/fastai.json"), {"to": to})
    export = json.loads(Path(folder, "fastai.json").read_text(encoding="utf-8"))
after = to.new(pd.DataFrame(ROWS))
after.process()
expected = {name: after.items[name].tolist() for name in [*to.cat_names, *to.cont_names]}
result = {"fastai": fastai.__version__, "export": export, "rows": ROWS, "expected": expected}
(HERE / "fastai_export.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
