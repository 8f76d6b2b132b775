"""What every model of the shelf keeps, in each of its forms; what is a model's own is in its file."""

from dataclasses import fields, replace

import pytest
import torch

from gigabatch.models.errors import ModelError
from gigabatch.models.inputs import EntityColumns, ModelInputs
from gigabatch.models.layers.numeric import NumericEmbedding
from gigabatch.models.optimizers.registry import build_optimizer
from gigabatch.models.shelf import MODELS, OWN, ModelSpec, model_class, spec_of
from tests.models.shelf_helpers import (
    BINARY,
    INPUTS,
    NO_FLOATS,
    NO_IDS,
    Rows,
    build,
    check_gradients,
    check_round_trip,
    check_row_optimizer,
    check_rows_alone,
    random_rows,
    spec,
    stir,
    with_needed_lists,
)

# ids item, context, user, item, user; floats context, item, user
SCATTERED = ModelInputs((30, 6, 40, 9, 7), 3, 1, EntityColumns(2, (2, 4), (2,)), EntityColumns(0, (0, 3), (1,)))
TWO_OUTPUTS = ModelInputs(INPUTS.num_ids, INPUTS.num_floats, 2)
AUTOINT = {"embedding_dim": 4, "num_layers": 2, "num_heads": 2, "head_dim": 3}
DCN = {"embedding_dim": 4, "layers": (16,), "dropout": 0.0}
DEEP = {"embedding_dim": 8, "layers": (32, 32), "dropout": 0.0}
DIN = {"embedding_dim": 4, "attention_layers": (6,), "layers": (8,)}
DLRM = {"embedding_dim": 8, "bottom_layers": (16,), "top_layers": (16,)}
FCN = {"embedding_dim": 4, "exponential_layers": 2, "linear_layers": 2, "dropout": 0.0}
FINALMLP = {"embedding_dim": 3, "first_layers": (6, 4), "second_layers": (8,), "num_heads": 2, "gate_layers": (12,)}
FINALMLP |= {"first_dropout": 0.0, "second_dropout": 0.0}
FT = {"token_dim": 8, "num_heads": 2, "num_blocks": 2, "attention_dropout": 0.0, "hidden_dropout": 0.0}
QNN = {"embedding_dim": 4, "num_layers": 2, "num_rows": 2, "num_heads": 2, "dropout": 0.0}
REALMLP = {"layers": (7, 6), "dropout": 0.0}
SASREC = {"dim": 4, "num_heads": 2, "length": 4, "dropout": 0.0}
TABM = {"members": 3, "layers": (6, 5), "dropout": 0.0}
TASKS = {"embedding_dim": 3, "layers": (6, 4), "tower_layers": (5,)}
TOWERS = {"embedding_dim": 4, "layers": (16,), "vector_dim": 8, "top_layers": (8,), "log_q": False}
WIDE = {"embedding_dim": 4, "layers": (16,), "dropout": 0.0}
CROSSED = WIDE | {"crosses": ((0, 1), (2, 0, 1)), "cross_buckets": 50}  # 35 combinations fit, 140 are hashed
FORMS = [
    ("tabular", {"layers": (8,)}),
    ("lr", {}),
    ("fm", {"embedding_dim": 4}),
    ("deepfm", DEEP),
    ("deepfm", DEEP | {"batch_norm": False}),
    ("wide_deep", WIDE),
    ("wide_deep", CROSSED),
    ("dlrm", DLRM),
    ("dlrm", DLRM | {"interaction": "cat", "batch_norm": True, "dropout": 0.1}),
    ("dcn", DCN),
    ("dcn", DCN | {"structure": "stacked"}),
    ("dcn", DCN | {"layers": ()}),
    ("dcn", DCN | {"rank": 3}),
    ("dcn", DCN | {"rank": 3, "experts": 2}),
    ("fcn", FCN),
    ("fcn", FCN | {"second_half": "low_cost", "loss": "plain"}),
    ("fcn", FCN | {"networks": "exponential"}),
    ("fcn", FCN | {"networks": "linear", "batch_norm": False}),
    ("qnn", QNN),
    ("qnn", QNN | {"batch_norm": False, "dropout": 0.1}),
    ("finalmlp", FINALMLP),
    ("autoint", AUTOINT),
    ("autoint", AUTOINT | {"layers": (6,)}),
    ("din", DIN),
    ("din", DIN | {"attention_norm": "softmax", "attention_activation": "dice", "dropout": 0.1}),
    ("ft_transformer", FT),
    ("tabm", TABM),
    ("tabm", TABM | {"form": "mini", "numeric": "periodic", "numeric_width": 3}),
    ("realmlp", REALMLP),
    ("realmlp", REALMLP | {"pbld": True, "numeric": "periodic", "numeric_width": 3, "activation": "mish"}),
    ("multi_task", TASKS | {"structure": "mmoe", "num_experts": 3}),
    ("multi_task", TASKS | {"structure": "shared_bottom"}),
    ("ple", TASKS | {"num_experts": 2, "num_shared": 3}),
    ("esmm", {"embedding_dim": 3, "layers": (6, 4)}),
    ("sasrec", SASREC),
    ("sasrec", SASREC | {"norm_first": False, "loss": "softmax", "log_q": False}),
    ("sasrec", SASREC | {"num_blocks": 1, "hidden_dim": 6, "loss": "bce"}),
    ("mf", {"dim": 3}),
    ("ncf", {"gmf_dim": 3, "mlp_dim": 4, "layers": (5, 2), "context": "both", "context_dim": 2}),
]
TOWER_FORMS = [
    ("two_tower", TOWERS | {"top": top, "loss": loss}) for top in ("dot", "mlp") for loss in ("bce", "softmax", "bpr")
]
MRMN_FORMS = [("mrmn", {"dim": 4, "relation": relation}) for relation in ("per_type", "gated", "shared")]
KINDS = {"both": INPUTS, "no floats": NO_FLOATS, "no ids": NO_IDS}


def fits(name: str, settings: dict, inputs: ModelInputs) -> bool:
    """Whether the data are such as the model takes."""
    if "user" in model_class(name).entities:
        return inputs.user is not None
    if name == "dlrm" and settings.get("interaction", "dot") == "dot":
        return bool(inputs.num_ids)  # floats alone are one vector, which has no pair
    if model_class(name).needs_lists:
        return bool(inputs.num_ids)  # whose vocabulary a list shares
    return bool(inputs.num_ids) or "crosses" not in settings


CASES = [
    pytest.param(name, settings, inputs, id=f"{name}-{number}-{kind}")
    for number, (name, settings) in enumerate([*FORMS, *TOWER_FORMS, *MRMN_FORMS])
    for kind, inputs in (KINDS | {"both": SCATTERED if name == "two_tower" else INPUTS}).items()
    if fits(name, settings, inputs)
]


@pytest.mark.parametrize(("name", "settings", "inputs"), CASES)
def test_it_learns_scores_each_row_alone_and_is_built_again_from_json(name, settings, inputs):
    check_gradients(name, inputs, **settings)
    check_rows_alone(name, inputs, **settings)
    check_round_trip(name, inputs, **settings)


@pytest.mark.parametrize(("name", "settings", "inputs"), CASES)
def test_no_rows_have_no_predictions_and_no_loss(name, settings, inputs):
    model = build(name, inputs, **settings)
    if hasattr(model, "remember"):
        rows = random_rows(model.inputs)
        model.remember(rows.ids, rows.floats, rows.targets, rows.lists)
    none = random_rows(model.inputs).part(torch.arange(0))
    with torch.no_grad():
        outputs = model.eval()(*none.given)
    assert outputs.shape == (0, inputs.num_outputs)
    (probabilities,) = BINARY.predict(model.in_target_units(outputs))
    assert probabilities.shape == (0,)
    with pytest.raises(ModelError, match="loss: a batch of 0 rows has no mean loss"):
        model.train().training_loss(none, BINARY)


@pytest.mark.parametrize("kind", ["bins", "periodic"])
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("tabm", TABM | {"numeric_width": 3}),
        ("realmlp", REALMLP | {"numeric_width": 3}),
        ("fm", {"embedding_dim": 4}),
        ("deepfm", DEEP),
        ("wide_deep", CROSSED | {"numeric_width": 3}),
        ("two_tower", TOWERS | {"numeric_width": 3}),
        ("mrmn", {"dim": 4}),
    ],
)
def test_floats_of_which_one_has_edges_are_embedded(name, settings, kind):
    inputs = replace(INPUTS, float_edges=((-1.0, 0.0, 0.5), ()))
    settings = settings | {"numeric": kind}
    check_gradients(name, inputs, **settings)
    check_rows_alone(name, inputs, **settings)
    check_round_trip(name, inputs, **settings)
    model = build(name, inputs, **settings)
    embedded = [module for module in model.modules() if isinstance(module, NumericEmbedding)]
    assert max(one.num_columns for one in embedded) == {"bins": 1, "periodic": 2}[kind]


SMALL = dict(reversed([*FORMS, *TOWER_FORMS, *MRMN_FORMS]))  # the first form of each
NUMBERED = [name for name in MODELS if "numeric" in {field.name for field in fields(model_class(name).Settings)}]


@pytest.mark.parametrize("name", NUMBERED)
def test_each_float_may_be_of_another_kind(name):
    """One of the first column's kind, the others by `*`: in each model, built again from JSON, the columns' vectors are
    of these kinds."""
    context = ModelInputs((5, 7, 4), 4, user=EntityColumns(0, (0,), (0,)), item=EntityColumns(1, (1,), (2,)))
    edges = ((-1.0, 0.0, 0.5), (-2.0, 1.0), (-0.5, 0.5), (0.0, 1.0))
    inputs = with_needed_lists(name, replace(context, float_edges=edges, float_names=("a", "b", "c", "d")))
    first = {"a": "bins", "c": "bins"} if name == "lr" else {"a": "periodic", "c": "plain", "*": "bins"}
    settings = SMALL[name] | {"numeric": first}
    check_gradients(name, inputs, **settings)
    if name != "fcn":  # whose exponential layers make numbers of 50 of these, and of their rounding as much
        check_rows_alone(name, inputs, **settings)
    check_round_trip(name, inputs, **settings)
    embedded = [module for module in build(name, inputs, **settings).modules() if isinstance(module, NumericEmbedding)]
    assert any(module.has_bins for module in embedded)
    if name != "lr":
        assert any(module.has_waves for module in embedded)
        with pytest.raises(ModelError, match=r"unknown float column of numeric 'e'\. Known: a, b, c, d"):
            build(name, inputs, **settings | {"numeric": {"e": "plain"}})
    assert max(module.num_columns for module in embedded) < 4


@pytest.mark.parametrize("name", ["fm", "deepfm", "wide_deep", "two_tower", "mrmn"])
def test_bins_are_of_the_floats_as_they_are_given(name):
    """Far from 0, where normed floats would all lie below the first edge: scores follow the bins as they did near 0."""
    near = replace(INPUTS, float_edges=((-1.0, 0.0, 0.5), (-2.0, 1.0)))
    far = replace(INPUTS, float_edges=((999.0, 1000.0, 1000.5), (998.0, 1001.0)))
    rows, models = random_rows(INPUTS), [build(name, inputs) for inputs in (near, far)]
    floats = (rows.floats * 64).round() / 64  # which float32 can hold beside 1,000
    stir(models[0])
    models[1].load_state_dict(models[0].state_dict())
    for model in models:
        for key, weight in model.named_parameters():
            if "numeric" not in key and (
                "float_vectors" in key or "float_weights" in key or "_floats" in key or "context_linear" in key
            ):
                torch.nn.init.zeros_(weight)  # the floats count by their bins alone
        for key, module in model.named_modules():
            if key.rpartition(".")[2] == "float_norm":
                module.register_forward_hook(lambda module, given, out: torch.zeros_like(out))
        model.eval()
    scores = models[0](rows.ids, floats)
    assert torch.allclose(scores, models[1](rows.ids, floats + 1000), atol=1e-3)
    assert not torch.allclose(scores, models[0](rows.ids, floats + 0.25), atol=1e-3)


@pytest.mark.parametrize("name", ["fm", "deepfm", "wide_deep", "two_tower", "mrmn"])
def test_a_model_that_was_saved_before_it_had_bins_has_none(name):
    inputs = replace(INPUTS, float_edges=((-1.0, 0.0, 0.5), ()))
    before = spec(name, inputs, numeric="plain")
    described = before.to_dict()
    old = described | {"settings": {key: value for key, value in described["settings"].items() if "numeric" not in key}}
    read, rows = ModelSpec.from_dict(old), random_rows(inputs)
    assert read == before
    assert spec(name, inputs).settings.numeric == "bins"
    model, again = before.build(), read.build()
    again.load_state_dict(model.state_dict())
    assert torch.equal(model.eval()(rows.ids, rows.floats), again.eval()(rows.ids, rows.floats))


def test_a_tabular_model_that_was_saved_before_its_eps_could_be_set_has_fastais():
    described = spec("tabular", INPUTS).to_dict()
    assert described["settings"].pop("batch_norm_eps") == 1e-3
    assert ModelSpec.from_dict(described).settings.batch_norm_eps == 1e-5


def test_so_has_a_users_model_that_is_derived_from_it(monkeypatch):
    class Mine(model_class("tabular")):
        pass

    monkeypatch.setitem(OWN.kinds, "mine", Mine)
    described = spec("tabular", INPUTS).to_dict() | {"name": "mine"}
    described["settings"].pop("batch_norm_eps")
    assert ModelSpec.from_dict(described).settings.batch_norm_eps == 1e-5


@pytest.mark.parametrize("loss", ["bce", "bpr"])
def test_mf_that_was_saved_before_users_had_a_bias_has_none(loss):
    """Its weights did not fit, so that what was served was told to be damaged."""
    described = spec("mf", INPUTS, loss=loss).to_dict()
    assert described["settings"].pop("user_bias") == (loss == "bce")
    saved = spec("mf", INPUTS, loss=loss, user_bias=False)
    model = ModelSpec.from_dict(described).build()
    model.load_state_dict(saved.build().state_dict())
    assert spec_of(model) == saved
    ids, floats = torch.zeros(2, len(INPUTS.num_ids), dtype=torch.int32), torch.zeros(2, INPUTS.num_floats)
    assert model.user_vectors(ids, floats).shape == model.item_vectors(ids, floats).shape == (2, model.settings.dim + 1)


@pytest.mark.parametrize(("name", "settings"), [*FORMS, *TOWER_FORMS])
def test_a_row_optimizer_lowers_the_loss(name, settings):
    check_row_optimizer(name, SCATTERED if name == "two_tower" else INPUTS, **settings)


@pytest.mark.parametrize(
    ("name", "dropout"),
    [
        ("autoint", "attention_dropout"),
        ("deepfm", "dropout"),
        ("fcn", "dropout"),
        ("qnn", "dropout"),
        ("ft_transformer", "attention_dropout"),
        ("ft_transformer", "hidden_dropout"),
        ("ft_transformer", "residual_dropout"),
        ("tabm", "dropout"),
        ("realmlp", "dropout"),
    ],
)
def test_dropout_is_for_training_alone(name, dropout):
    others = {field.name: 0.0 for field in fields(model_class(name).Settings) if field.name.endswith("dropout")}
    model, rows = build(name, **(others | {dropout: 0.5})), random_rows(INPUTS)
    stir(model)
    for training in (True, False):
        first, second = (model.train(training)(rows.ids, rows.floats) for _ in range(2))
        assert torch.equal(first, second) != training


@pytest.mark.parametrize("towers", ["auto", "sequential", "devices"])
def test_a_retired_setting_of_a_saved_model_is_left_out(towers):
    described = spec("two_tower").to_dict()
    before = described | {"settings": described["settings"] | {"towers": towers}}
    assert ModelSpec.from_dict(before) == spec("two_tower")
    with pytest.raises(ModelError, match="unknown setting of the model two_tower 'tower'"):
        ModelSpec.from_dict(described | {"settings": {"tower": towers}})


def test_several_outputs_are_built_again_from_json():
    for name in MODELS:
        if not model_class(name).single_output and not model_class(name).entities:
            check_round_trip(name, TWO_OUTPUTS)


@pytest.mark.parametrize("name", MODELS)
def test_inputs_of_another_shape_are_refused(name):
    model, rows = build(name), random_rows(INPUTS)
    own = type(model).__name__
    with pytest.raises(ModelError, match=rf"{own}: ids must be \[rows, 3\], found \[64, 2\]"):
        model(rows.ids[:, :2], rows.floats)
    with pytest.raises(ModelError, match=rf"{own}: floats must be \[rows, 2\], found \[64, 1\]"):
        model(rows.ids, rows.floats[:, :1])
    with pytest.raises(ModelError, match="3 rows of ids but 64 rows of floats"):
        model(rows.ids[:3], rows.floats)


@pytest.mark.parametrize("name", MODELS)
def test_inputs_of_another_dtype_are_refused(name):
    model, rows = build(name), random_rows(INPUTS)
    own = type(model).__name__
    for kind in (torch.float32, torch.complex64, torch.bool):
        with pytest.raises(ModelError, match=rf"{own}: ids must be whole numbers, found {kind}\. Give"):
            model(rows.ids.to(kind), rows.floats)
    for kind in (torch.float64, torch.float16, torch.bfloat16, torch.int32):
        with pytest.raises(ModelError, match=rf"{own}: floats must be torch\.float32, found {kind}\. Give"):
            model(rows.ids, rows.floats.to(kind))


@pytest.mark.parametrize("kind", [torch.int8, torch.uint8, torch.int16, torch.int32])
@pytest.mark.parametrize("name", ["tabular", "dcn", "fm", "mf", "two_tower"])
def test_narrow_ids_are_the_same_rows(name, kind):
    model, rows = build(name).eval(), random_rows(INPUTS)
    torch.testing.assert_close(model(rows.ids.to(kind), rows.floats), model(rows.ids, rows.floats), rtol=0, atol=0)


def test_a_model_without_parameters_in_another_precision_takes_floats_of_its_own():
    model, rows = build("ease").bfloat16(), random_rows(INPUTS)
    assert not list(model.parameters())
    model.require_inputs(rows.ids, rows.floats.bfloat16())
    with pytest.raises(ModelError, match=r"floats must be torch\.bfloat16, found torch\.float16"):
        model.require_inputs(rows.ids, rows.floats.half())


def test_a_model_in_another_precision_takes_floats_of_its_own():
    model, rows = build("dcn").eval(), random_rows(INPUTS)
    expected = model(rows.ids, rows.floats)
    model.double()
    torch.testing.assert_close(model(rows.ids, rows.floats.double()), expected)
    with pytest.raises(ModelError, match=r"floats must be torch\.float64, found torch\.float16"):
        model(rows.ids, rows.floats.half())


@pytest.mark.parametrize("name", MODELS)
def test_a_trained_model_in_double_precision_gives_the_same(name):
    """Those of tables whose rows moved ended with an assertion; tabm, realmlp, and fm of several outputs with torch's
    word on types."""
    several = name in ("fm", "deepfm")
    inputs = replace(INPUTS, num_outputs=2) if several else INPUTS
    model, rows = build(name, inputs), random_rows(with_needed_lists(name, inputs))
    if model.learns_by_steps:
        build_optimizer(model, "lamb", lr=0.1)
    else:
        model.fit(rows)
    model.eval()
    expected = model(*rows.given)
    found = model.double()(rows.ids, rows.floats.double(), *rows.given[2:])
    torch.testing.assert_close(found.float(), expected, rtol=1e-4, atol=1e-5)


VECTORS = [name for name in MODELS if "numeric" in {one.name for one in fields(model_class(name).Settings)}]


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("name", "numeric"), [(name, "bins") for name in VECTORS] + [("tabular", "periodic"), ("tabm", "periodic")]
)
def test_a_model_of_vectors_of_floats_in_fewer_bits_gives_nearly_the_same(name, numeric, kind):
    """It ended with torch's word on types; and of edges that its bits hold one alone there would be no bin."""
    inputs = replace(INPUTS, float_edges=((-1.0, 0.25, 0.2501, 1.0), (-0.5, 0.5)))
    torch.manual_seed(0)
    model, rows = build(name, inputs, numeric=numeric).eval(), random_rows(with_needed_lists(name, inputs))
    rows.floats[0, 0] = 0.25
    expected = model(*rows.given)
    with torch.no_grad():
        found = model.to(kind)(rows.ids, rows.floats.to(kind), *rows.given[2:])
    torch.testing.assert_close(found.float(), expected.detach(), rtol=0.05, atol=0.05)


WRONG = {
    "int": (-1, 1.5, True, "3"),
    "tuple[int, ...]": (5, (3, 0), (2.5,)),
    "bool": ("yes", 1),
    "dropout": (1.0, -0.1, "half", True),
}


@pytest.mark.parametrize("name", MODELS)
def test_values_that_do_not_fit_a_settings_type_are_refused(name):
    for field in fields(model_class(name).Settings):
        kind = "dropout" if field.name.endswith("dropout") else field.type.removesuffix(" | None")
        for value in WRONG.get(kind, ()):
            with pytest.raises(ModelError, match=f"^{field.name} must be"):
                model_class(name).Settings(**{field.name: value})


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("dcn", {"experts": 2}, "2 experts are low-rank ones; set rank too"),
        ("dcn", {"structure": "beside"}, "unknown structure 'beside'. Known: parallel, stacked"),
        ("dcn", {"rank": 0}, "rank must be an integer from 1 up"),
        ("deepfm", {"layers": []}, "layers is empty"),
        ("dlrm", {"top_layers": []}, "top_layers is empty"),
        ("dlrm", {"interaction": "sum"}, "unknown interaction 'sum'. Known: dot, cat"),
        ("fcn", {"embedding_dim": 5}, "cut into halves; make it even, not 5"),
        ("fcn", {"networks": "ecn"}, "Known: both, exponential, linear"),
        ("fcn", {"second_half": "mask"}, "Known: self_mask, low_cost"),
        ("fcn", {"loss": "bce"}, "Known: tri, plain"),
        ("qnn", {"num_heads": 3}, "num_heads 3 does not divide embedding_dim, 16"),
        ("qnn", {"self_ensemble": 1}, "self_ensemble must be true or false"),
        ("finalmlp", {"num_heads": 3}, r"num_heads 3 does not divide the last of first_layers, 400"),
        ("finalmlp", {"second_layers": (801,)}, r"does not divide the last of second_layers, 801"),
        ("finalmlp", {"first_layers": ()}, "first_layers is empty"),
        ("finalmlp", {"first_gate": "users"}, "Known: auto, user, item, context, learned, none"),
        ("ft_transformer", {"num_heads": 7}, "num_heads 7 does not divide token_dim 192"),
        ("ft_transformer", {"hidden_factor": 0.001}, "hidden_factor must be a positive number"),
        ("ft_transformer", {"hidden_factor": float("nan")}, "hidden_factor must be a positive number"),
        ("ft_transformer", {"hidden_factor": float("inf")}, "hidden_factor must be a positive number"),
        ("gplvmf", {"kept": "first"}, "unknown kept rows of gplvmf 'first'. Known: last, random"),
        ("gplvmf", {"jitter": 0}, "jitter must be a positive number"),
        ("gplvmf", {"bias_deviation": "wide"}, "bias_deviation must be a positive number"),
        ("mrmn", {"relation": "both"}, "unknown relation of mrmn 'both'. Known: per_type, gated, shared, none"),
        ("mrmn", {"margins": (0.5, -1)}, "margins must be positive"),
        ("mrmn", {"margins": ()}, "margins must be positive"),
        ("mrmn", {"margins": "wide"}, "margins must be positive"),
        ("multi_task", {"structure": "ple"}, "unknown structure of multi_task 'ple'. Known: shared_bottom, mmoe"),
        ("multi_task", {"structure": "shared_bottom", "num_experts": 4}, "4: a shared bottom has no experts"),
        ("multi_task", {"layers": ()}, "layers is empty"),
        ("ple", {"layers": ()}, "layers is empty"),
        ("ple", {"num_shared": 0}, "num_shared must be an integer from 1 up"),
        ("esmm", {"layers": ()}, "layers is empty"),
        ("mf", {"dim": 0}, "dim must be"),
        ("mf", {"initial_std": 0}, "initial_std must be a positive number"),
        ("ncf", {"gmf_dim": 0, "mlp_dim": 0}, "both 0"),
        ("ncf", {"gmf_dim": 0, "context": "both"}, "there is no gmf for it"),
        ("ncf", {"mlp_dim": 0, "context": "mlp"}, "there is no mlp for it"),
        ("ncf", {"context": "everywhere"}, "place of the context 'everywhere'. Known: mlp, gmf, both, none"),
        ("ncf", {"layers": ()}, "layers is empty"),
        ("realmlp", {"activation": "relu"}, "unknown activation of realmlp 'relu'. Known: auto, selu, mish"),
        ("realmlp", {"numeric": "pbld"}, "unknown numeric 'pbld'"),
        ("realmlp", {"frequency_deviation": 0}, "frequency_deviation must be a positive number"),
        ("realmlp", {"embedding_widths": (3,)}, "embedding_widths has 1 entries for 3 "),
        ("tabm", {"form": "packed"}, "unknown form of tabm 'packed'. Known: full, mini"),
        ("tabm", {"layers": ()}, "layers is empty"),
        ("tabm", {"embedding_widths": (3,)}, "embedding_widths has 1 entries for 3 "),
        ("two_tower", {"temperature": 0}, "temperature must be a positive number"),
        ("two_tower", {"softmax_rows": 1}, "softmax_rows must be at least 2"),
        ("two_tower", {"top": "max"}, r"unknown top of two_tower 'max'. Known: dot, mlp"),
        ("two_tower", {"loss": "hinge"}, r"unknown loss of two_tower 'hinge'. Known: bce, softmax, bpr"),
        ("wide_deep", {"layers": []}, "layers is empty"),
        ("wide_deep", {"cross_buckets": 2**31}, "cross_buckets must be at most 2147483647"),
        ("wide_deep", {"crosses": 3}, "crosses must be a list of lists"),
        ("wide_deep", {"crosses": [0, 1]}, "crosses: 0 is not a list of two or more different id columns"),
        ("wide_deep", {"crosses": [[0]]}, r"crosses: \(0,\) is not a list of two or more"),
        ("wide_deep", {"crosses": [[0, 0]]}, "is not a list of two or more different"),
        ("wide_deep", {"crosses": [[0, -1]]}, "is not a list of two or more different"),
        ("wide_deep", {"crosses": [[0, "user"]]}, "is not a list of two or more different"),
        ("tabular", {"embedding_widths": (3,)}, "embedding_widths has 1 entries for 3 "),
        ("tabular", {"dropout": (0.1, 0.2, 0.3)}, "one number, or one for each of the 2 layers"),
        ("tabular", {"output_range": (1.0, 1.0)}, "low < high"),
        ("tabular", {"output_range": (1.0,)}, "low < high"),
        ("tabular", {"output_range": 5}, "two finite numbers with low < high, not 5"),
        ("tabular", {"output_range": ("a", 2)}, "two finite numbers"),
        ("tabular", {"output_range": (0, float("inf"))}, "two finite numbers"),
        ("mrmn", {"margins": float("inf")}, "margins must be positive"),
        ("ncf", {"gmf_dim": True}, "gmf_dim must be a whole number from 0, not True"),
    ],
)
def test_settings_that_cannot_be_are_refused(name, settings, message):
    with pytest.raises(ModelError, match=message):
        build(name, **settings)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_built_from_its_own_inputs_and_settings(name):
    """M14: what else was given came out as an AttributeError of some line inside."""
    kind, own = model_class(name), model_class(name).Settings
    other = model_class("lr" if name != "lr" else "fm").Settings()
    for settings in ({}, None, other):
        with pytest.raises(ModelError, match=rf"{kind.__name__}: settings must be .*{own.__name__}, found"):
            kind(INPUTS, settings)
    with pytest.raises(ModelError, match=rf"{kind.__name__}: inputs must be .*ModelInputs, found tuple"):
        kind((5, 7), own())


@pytest.mark.parametrize("name", [name for name in MODELS if model_class(name).entities])
def test_a_model_of_users_and_items_must_know_their_columns(name):
    bare, half = ModelInputs((5, 6), 0), ModelInputs((5, 6), 0, user=EntityColumns(0, (0,)))
    with pytest.raises(ModelError, match="which columns are those of user and item"):
        spec(name, bare).build()
    with pytest.raises(ModelError, match="which columns are those of item"):
        model_class(name)(half, model_class(name).Settings())


@pytest.mark.parametrize("name", [name for name in MODELS if model_class(name).single_output])
def test_a_model_of_one_number_a_row_takes_one_target(name):
    inputs = ModelInputs(INPUTS.num_ids, INPUTS.num_floats, 3, INPUTS.user, INPUTS.item)
    with pytest.raises(ModelError, match="one number a row, and the targets ask for 3"):
        spec(name, inputs).build()


def test_a_loss_asks_for_rows_of_the_same_shape():
    rows = random_rows(INPUTS)
    with pytest.raises(ModelError, match="rows of ids but"):
        build("lr").training_loss(Rows(rows.ids[:3], rows.floats, rows.targets), BINARY)
