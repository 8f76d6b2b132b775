"""Raw event tables to features, encoded tensors, a trained, evaluated, servable model.

    from gigabatch import Pipeline

    run = Pipeline.from_config("conf/flights.yaml").train()

The names below are the public interface. Each is imported when it is first asked for, so that `import gigabatch` takes
no time. The packages `features`, `loaders`, `models` and `pipeline` are links to the folders at the top of the
checkout.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gigabatch.features.encoding.preprocessor import Preprocessor
    from gigabatch.features.operators import register_operator
    from gigabatch.features.operators.base import ColumnOperator, FittedOperator, Operator
    from gigabatch.features.operators.rows.lambda_function import register_function
    from gigabatch.features.recipes import register_recipe
    from gigabatch.features.schema import Schema
    from gigabatch.features.workflow.workflow import Workflow
    from gigabatch.loaders.batches.dataset import BatchDataset
    from gigabatch.loaders.batches.loader import BatchLoader
    from gigabatch.loaders.tables.packed import PackedTable
    from gigabatch.models.click.autoint import AutoInt
    from gigabatch.models.click.dcn import DCN
    from gigabatch.models.click.deepfm import DeepFM
    from gigabatch.models.click.din import DIN
    from gigabatch.models.click.dlrm import DLRM
    from gigabatch.models.click.esmm import EntireSpace
    from gigabatch.models.click.fcn import FCN
    from gigabatch.models.click.finalmlp import FinalMLP
    from gigabatch.models.click.fm import FactorizationMachine
    from gigabatch.models.click.lr import LogisticRegression
    from gigabatch.models.click.multi_task import MultiTask
    from gigabatch.models.click.ple import ProgressiveLayeredExtraction
    from gigabatch.models.click.qnn import QNN
    from gigabatch.models.click.wide_deep import WideDeep
    from gigabatch.models.inputs import ModelInputs
    from gigabatch.models.model import Model
    from gigabatch.models.optimizers.lamb import Lamb
    from gigabatch.models.recommenders.ease import EASE
    from gigabatch.models.recommenders.gplvmf import GPLVMF
    from gigabatch.models.recommenders.item_knn import ItemKNN
    from gigabatch.models.recommenders.mf import MatrixFactorization
    from gigabatch.models.recommenders.mrmn import MRMN
    from gigabatch.models.recommenders.ncf import NCF
    from gigabatch.models.recommenders.popularity import Popularity
    from gigabatch.models.recommenders.sasrec import SASRec
    from gigabatch.models.recommenders.top_frequency import TopFrequency
    from gigabatch.models.recommenders.two_tower import TwoTower
    from gigabatch.models.shelf import register_model
    from gigabatch.models.tabular.ft_transformer import FTTransformer
    from gigabatch.models.tabular.realmlp import RealMLP
    from gigabatch.models.tabular.tabm import TabM
    from gigabatch.models.tabular.tabular import TabularModel
    from gigabatch.pipeline.bundle import Bundle, load_bundle
    from gigabatch.pipeline.display import detail
    from gigabatch.pipeline.embedding.recommend import recommend
    from gigabatch.pipeline.init.write import init
    from gigabatch.pipeline.python.estimators import GigabatchClassifier, GigabatchRegressor
    from gigabatch.pipeline.python.fit import fit
    from gigabatch.pipeline.python.transformers import PreprocessorTransformer, WorkflowTransformer
    from gigabatch.pipeline.runs.listing import list_runs
    from gigabatch.pipeline.stages.score import evaluate
    from gigabatch.pipeline.stages.stages import Pipeline
    from gigabatch.pipeline.training.callbacks import Callback
    from gigabatch.pipeline.views.figures import curves

__version__ = "0.2.0"

_FOLDERS = ("features", "loaders", "models", "pipeline")
_PLACES = {
    "Pipeline": "pipeline.stages.stages",
    "fit": "pipeline.python.fit",
    "init": "pipeline.init.write",
    "evaluate": "pipeline.stages.score",
    "recommend": "pipeline.embedding.recommend",
    "GigabatchClassifier": "pipeline.python.estimators",
    "GigabatchRegressor": "pipeline.python.estimators",
    "PreprocessorTransformer": "pipeline.python.transformers",
    "WorkflowTransformer": "pipeline.python.transformers",
    "Callback": "pipeline.training.callbacks",
    "curves": "pipeline.views.figures",
    "detail": "pipeline.display",
    "list_runs": "pipeline.runs.listing",
    "Bundle": "pipeline.bundle",
    "load_bundle": "pipeline.bundle",
    "Workflow": "features.workflow.workflow",
    "Preprocessor": "features.encoding.preprocessor",
    "Schema": "features.schema",
    "PackedTable": "loaders.tables.packed",
    "BatchDataset": "loaders.batches.dataset",
    "BatchLoader": "loaders.batches.loader",
    "Lamb": "models.optimizers.lamb",
    "Model": "models.model",
    "ModelInputs": "models.inputs",
    "TabularModel": "models.tabular.tabular",
    "FTTransformer": "models.tabular.ft_transformer",
    "TabM": "models.tabular.tabm",
    "RealMLP": "models.tabular.realmlp",
    "LogisticRegression": "models.click.lr",
    "FactorizationMachine": "models.click.fm",
    "DeepFM": "models.click.deepfm",
    "WideDeep": "models.click.wide_deep",
    "DLRM": "models.click.dlrm",
    "DCN": "models.click.dcn",
    "DIN": "models.click.din",
    "FCN": "models.click.fcn",
    "QNN": "models.click.qnn",
    "FinalMLP": "models.click.finalmlp",
    "AutoInt": "models.click.autoint",
    "MultiTask": "models.click.multi_task",
    "ProgressiveLayeredExtraction": "models.click.ple",
    "EntireSpace": "models.click.esmm",
    "SASRec": "models.recommenders.sasrec",
    "TopFrequency": "models.recommenders.top_frequency",
    "TwoTower": "models.recommenders.two_tower",
    "MatrixFactorization": "models.recommenders.mf",
    "NCF": "models.recommenders.ncf",
    "MRMN": "models.recommenders.mrmn",
    "GPLVMF": "models.recommenders.gplvmf",
    "Popularity": "models.recommenders.popularity",
    "ItemKNN": "models.recommenders.item_knn",
    "EASE": "models.recommenders.ease",
    "Operator": "features.operators.base",
    "ColumnOperator": "features.operators.base",
    "FittedOperator": "features.operators.base",
    "register_function": "features.operators.rows.lambda_function",
    "register_operator": "features.operators",
    "register_recipe": "features.recipes",
    "register_model": "models.shelf",
}

__all__ = [
    "DCN",
    "DIN",
    "DLRM",
    "EASE",
    "FCN",
    "GPLVMF",
    "MRMN",
    "NCF",
    "QNN",
    "AutoInt",
    "BatchDataset",
    "BatchLoader",
    "Bundle",
    "Callback",
    "ColumnOperator",
    "DeepFM",
    "EntireSpace",
    "FTTransformer",
    "FactorizationMachine",
    "FinalMLP",
    "FittedOperator",
    "GigabatchClassifier",
    "GigabatchRegressor",
    "ItemKNN",
    "Lamb",
    "LogisticRegression",
    "MatrixFactorization",
    "Model",
    "ModelInputs",
    "MultiTask",
    "Operator",
    "PackedTable",
    "Pipeline",
    "Popularity",
    "Preprocessor",
    "PreprocessorTransformer",
    "ProgressiveLayeredExtraction",
    "RealMLP",
    "SASRec",
    "Schema",
    "TabM",
    "TabularModel",
    "TopFrequency",
    "TwoTower",
    "WideDeep",
    "Workflow",
    "WorkflowTransformer",
    "__version__",
    "curves",
    "detail",
    "evaluate",
    "fit",
    "init",
    "list_runs",
    "load_bundle",
    "recommend",
    "register_function",
    "register_model",
    "register_operator",
    "register_recipe",
]


if not TYPE_CHECKING:  # who checks types finds every name above, and no other

    def __getattr__(name: str) -> Any:
        if name not in _PLACES:
            raise AttributeError(f"module 'gigabatch' has no attribute {name!r}. It has: {', '.join(__all__)}.")
        found = getattr(importlib.import_module(f"gigabatch.{_PLACES[name]}"), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__")), *_FOLDERS})
