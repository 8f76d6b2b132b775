"""`gigabatch init` of files that are not UTF-8, as spreadsheets write them, and what is done with them after it."""

import numpy as np
import pandas as pd
import pytest
import yaml

from gigabatch.features.errors import DataError
from gigabatch.features.recipes.table.recipe import TableRecipe
from gigabatch.pipeline.commands.app import main
from gigabatch.pipeline.contract.decide import learn_contract
from gigabatch.pipeline.contract.measure import measure_file
from gigabatch.pipeline.init.draft import draft_config
from gigabatch.pipeline.init.write import init
from gigabatch.pipeline.lab.plan.sample import measure, sample_files
from gigabatch.pipeline.stages.stages import Pipeline

ROWS = 400
FAST = {"train.epochs": 1, "train.batch_size": 64, "model.kind": "tabular", "model.layers": [8], "device": "cpu"}


def lines(rows=ROWS):
    """A table as a German spreadsheet writes it: semicolons, decimal commas, umlauts."""
    rng = np.random.default_rng(0)
    towns, prices = rng.choice(["Köln", "Zürich", "Łódź"[1:] + "ü", "Ulm"], rows), rng.gamma(2, 700, rows)
    sold = np.where(rng.random(rows) < 0.2 + 0.5 * (towns == "Köln"), "verkauft", "übrig")
    shown = [f"{price:,.2f}".translate(str.maketrans(",.", ".,")) for price in prices]
    return "\r\n".join(["Ort;Größe in €;Ausgang", *map(";".join, zip(towns, shown, sold, strict=True))]) + "\r\n"


def text_of(encoding):
    return lines() if encoding.startswith("utf") else lines().replace("ód", "od").replace("ź", "z")


@pytest.mark.parametrize(
    ("encoding", "told", "why"),
    [("cp1252", "cp1252", "taken for that of Windows, by which a text is '"),
     ("utf-16", "utf-16", "byte order mark")],
)  # fmt: skip
def test_a_spreadsheets_file_goes_from_init_to_scores(tmp_path, encoding, told, why):
    raw = tmp_path / "verkauf.csv"
    raw.write_bytes(text_of(encoding).encode(encoding))
    out, made = init(str(raw), "Ausgang", tmp_path / "verkauf.yaml")
    features = yaml.safe_load(out.read_text())["features"]
    assert (features["encoding"], features["separator"]) == (told, ";")
    assert made.features["continuous"] == ["Größe in €"]
    assert why in out.read_text()
    homes = {"runs": str(tmp_path / "runs"), "artifacts": str(tmp_path / "artifacts")}
    run = Pipeline.from_config(out, {**FAST, **homes}).train()
    frame = Pipeline.from_config(out, homes).features().frame("train")
    towns = set(frame["Ort"])
    assert {"Köln", "Zürich"} <= towns <= set(pd.Series(text_of(encoding).split("\r\n")[1:-1]).str.split(";").str[0])
    largest = max(float(line.split(";")[1].replace(".", "").replace(",", ".")) for line in lines().split("\r\n")[1:-1])
    assert float(max(Pipeline.from_config(out, homes).features().frame(split)["Größe in €"].max()
                     for split in ("train", "valid", "test"))) == np.float32(largest)  # fmt: skip

    asked = "\r\n".join(text_of(encoding).split("\r\n")[:4]) + "\r\n"
    (tmp_path / "neu.csv").write_bytes(asked.encode(encoding))
    scores = tmp_path / "scores.csv"
    homes_set = [f"{key}={value}" for key, value in homes.items()]
    command = ["score", "--config", str(out), "--input", str(tmp_path / "neu.csv"), "--out", str(scores), *homes_set]
    assert main(command) == 0
    of_rows = run.predict(pd.DataFrame([line.split(";") for line in asked.split("\r\n")[1:-1]],
                                           columns=asked.split("\r\n")[0].split(";")))  # fmt: skip
    found = pd.read_csv(scores)["predicted_Ausgang"]
    np.testing.assert_allclose(found, of_rows.iloc[:, 0], rtol=1e-6)

    config = Pipeline.from_config(out, homes).config
    (kind,) = TableRecipe(config.features).raw_files()
    measured = measure_file(kind, "pandas", str(raw))
    assert (measured.rows, measured.ends) == (ROWS, True if encoding == "cp1252" else None)
    assert list(measured.columns or ()) == ["Ort", "Größe in €", "Ausgang"]
    learn_contract(config)
    assert measure("table", config.features).rows == pytest.approx(ROWS, rel=0.05)
    settings, share = sample_files("table", config.features, 0.5, tmp_path / "sample")
    assert 0.3 < share < 0.7
    part = Pipeline.from_config(out, {**homes, "features.path": settings.path}).features()
    assert set(part.frame("train")["Ort"]) <= towns


def test_another_encoding_than_the_guess_is_given(tmp_path, capsys):
    raw = tmp_path / "miasta.csv"
    towns = ["Łódź", "Kraków", "Toruń"] * 60
    raw.write_bytes("\n".join(["miasto,y", *(f"{name},{k % 2}" for k, name in enumerate(towns))]).encode("cp1250"))
    out = tmp_path / "miasta.yaml"
    assert main(["init", str(raw), "--target", "y", "--encoding", "cp1250", "--out", str(out)]) == 0
    assert yaml.safe_load(out.read_text())["features"]["encoding"] == "cp1250"
    frame = Pipeline.from_config(out, {"artifacts": str(tmp_path / "a")}).features().frame("train")
    assert set(frame["miasto"]) == set(towns)
    assert main(["init", str(raw), "--target", "y", "--encoding", "cp9999", "--out", str(tmp_path / "b.yaml")]) != 0
    assert "encoding 'cp9999' is not known" in capsys.readouterr().err


def test_files_of_one_table_have_one_encoding(tmp_path):
    rows = [f"{k % 7},{k % 2}" for k in range(200)]
    (tmp_path / "a.csv").write_text("\n".join(["größe,y", *rows]), encoding="cp1252")
    (tmp_path / "b.csv").write_text("\n".join(["größe,y", *rows]), encoding="utf-8")
    with pytest.raises(DataError, match=r"several encodings: .*a.csv \(cp1252\), .*b.csv \(utf-8\)"):
        draft_config(str(tmp_path), "y", None, 1000)
    for name, head in (("a", "größe,y"), ("b", "größe,y")):
        (tmp_path / f"{name}.csv").write_text("\n".join([head, *rows]), encoding="cp1252")
    assert draft_config(str(tmp_path), "y", None, 1000).features["encoding"] == "cp1252"


def test_ascii_beside_cp1252_is_cp1252(tmp_path):
    head, rows = "ort,y", [f"Ulm,{k % 2}" for k in range(200)]
    (tmp_path / "a.csv").write_text("\n".join([head, *rows]))
    (tmp_path / "b.csv").write_text("\n".join([head, *rows, "Köln,1"]), encoding="cp1252")
    assert draft_config(str(tmp_path), "y", None, 1000).features["encoding"] == "cp1252"
