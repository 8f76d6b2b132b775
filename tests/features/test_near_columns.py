"""Which names an error about missing columns takes for meant."""

from gigabatch.features.errors import DataError


def test_the_first_three_missing_names_are_looked_for_and_each_meant_name_is_said_once():
    missing = ["pricee", "Price ", "citty", "wieght", "hieght"]
    said = str(DataError.missing_columns(missing, ["price", "city", "weight", "height"], "table"))
    assert "Did you mean 'price', 'city'? " in said
    said = str(DataError.missing_columns(missing[2:4], ["price", "city", "weight"], "table", ["price"]))
    assert "Did you mean 'city', 'weight'? " in said


def test_no_name_is_looked_for_among_very_many():
    names = [f"feature_{number:03d}" for number in range(100)]
    assert "Did you mean 'feature_000'" in str(DataError.missing_columns(["Feature_000"], names, "table"))
    others = [f"{name}x" for name in names]
    assert "Did you mean 'feature_" in str(DataError.missing_columns(names, others, "table"))  # 10,000 pairs
    assert "Did you mean" not in str(DataError.missing_columns(names, [*others, "more"], "table"))


def test_names_that_look_alike_and_are_written_in_two_forms_of_unicode_are_told_so():
    composed, apart = "Gr\u00f6\u00dfe", "Gro\u0308\u00dfe"  # both are shown as Größe
    for missing, there in ((composed, apart), (apart, composed)):
        said = str(DataError.missing_columns([missing], [there, "price"], "table"))
        assert "an accented letter is one character, in the other a letter and a mark" in said
    assert "a letter and a mark" not in str(DataError.missing_columns([composed], ["Grosse", "price"], "table"))
