"""`init` names the line in which a header stands that other lines stand above."""

import pytest

from gigabatch.features.errors import DataError
from gigabatch.pipeline.init.draft import draft_config

BODY = [[f"2024-01-{k % 28 + 1:02}", "abc"[k % 3], f"{k % 17}.{k % 9 + 1}", ("yes", "no")[k % 2]] for k in range(300)]
HEADER = ["date", "shop", "amount", "sold"]


def written(tmp_path, above, sep, decimal=".", header=HEADER):
    rows = [sep.join(header), *(sep.join(row).replace(".", decimal) for row in BODY)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join([line.replace(";", sep) for line in above] + rows) + "\n")
    return str(path)


@pytest.mark.parametrize(
    "above",
    [
        ["Report 2024"], ["Report 2024;;;"], ["Report 2024", ""], ["Report 2024;;;", ";;;"], ["When;;What;"], ["sep=;"],
        ["# made by x"], ["Report 2024", "Created;today"], ['"Report";2024', "by me;7", "of all shops"],
    ],
)  # fmt: skip
@pytest.mark.parametrize(("sep", "decimal"), [(",", "."), (";", "."), (";", ","), ("\t", ",")])
def test_the_line_of_a_header_below_others_is_named(tmp_path, above, sep, decimal):
    path = written(tmp_path, above, sep, decimal)
    said = rf"Delete lines above the header: 'sold' stands in line {len(above) + 1}\.$"
    with pytest.raises(DataError, match=said):
        draft_config(path, "sold", None, 1000)


def test_years_in_a_header_are_no_row_of_numbers_and_names_may_be_in_quotes(tmp_path):
    path = written(tmp_path, ["Report"], ",", header=["date", "shop", "2024", '"sold"'])
    with pytest.raises(DataError, match="'sold' stands in line 2"):
        draft_config(path, "sold", None, 1000)


@pytest.mark.parametrize("target", ["2.3", "yes", "sell"])
def test_of_a_target_that_no_header_has_the_columns_are_named(tmp_path, target):
    with pytest.raises(DataError, match=r"no such column\..* Columns: 'date', 'shop', 'amount', 'sold'\.$"):
        draft_config(written(tmp_path, [], ","), target, None, 1000)


@pytest.mark.parametrize("above", [["id,comment,status,", "0,text,yes,1", "1,,no,0"], ["id;comment;status;sum"]])
def test_a_field_that_reads_as_the_target_is_no_header(tmp_path, above):
    path = written(tmp_path, above, ",", header=["4", "churn", "yes", "1"])
    with pytest.raises(DataError, match=r"target 'churn': no such column\."):
        draft_config(path, "churn", None, 1000)
