"""Batches to scores: models, and what training and judging them takes. Importing it does nothing else.

A name's module is imported when the name is first asked for, so that what needs no torch is there at once.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from models.embeddings import EmbeddingTables, embedding_width
    from models.errors import ModelError
    from models.lamb import Lamb, lamb_param_groups
    from models.losses import TargetLoss
    from models.metrics import (
        CalibrationCurve,
        RocCurve,
        accuracy,
        calibration_curve,
        expected_calibration_error,
        grouped_mrr,
        log_loss,
        mae,
        multiclass_log_loss,
        r2,
        reciprocal_ranks,
        rmse,
        roc_auc,
        roc_curve,
    )
    from models.optimizers import build_optimizer, set_lr_and_momentum
    from models.param_groups import ParameterSplit, split_parameters
    from models.schedule import Constant, OneCycle, Schedule, WarmupPolynomial, square_root_scaled_lr
    from models.tabular import TabularConfig, TabularModel

__all__ = [
    "CalibrationCurve",
    "Constant",
    "EmbeddingTables",
    "Lamb",
    "ModelError",
    "OneCycle",
    "ParameterSplit",
    "RocCurve",
    "Schedule",
    "TabularConfig",
    "TabularModel",
    "TargetLoss",
    "WarmupPolynomial",
    "accuracy",
    "build_optimizer",
    "calibration_curve",
    "embedding_width",
    "expected_calibration_error",
    "grouped_mrr",
    "lamb_param_groups",
    "log_loss",
    "mae",
    "multiclass_log_loss",
    "r2",
    "reciprocal_ranks",
    "rmse",
    "roc_auc",
    "roc_curve",
    "set_lr_and_momentum",
    "split_parameters",
    "square_root_scaled_lr",
]

_HOMES = {
    "CalibrationCurve": "models.metrics",
    "Constant": "models.schedule",
    "EmbeddingTables": "models.embeddings",
    "Lamb": "models.lamb",
    "ModelError": "models.errors",
    "OneCycle": "models.schedule",
    "ParameterSplit": "models.param_groups",
    "RocCurve": "models.metrics",
    "Schedule": "models.schedule",
    "TabularConfig": "models.tabular",
    "TabularModel": "models.tabular",
    "TargetLoss": "models.losses",
    "WarmupPolynomial": "models.schedule",
    "accuracy": "models.metrics",
    "build_optimizer": "models.optimizers",
    "calibration_curve": "models.metrics",
    "embedding_width": "models.embeddings",
    "expected_calibration_error": "models.metrics",
    "grouped_mrr": "models.metrics",
    "lamb_param_groups": "models.lamb",
    "log_loss": "models.metrics",
    "mae": "models.metrics",
    "multiclass_log_loss": "models.metrics",
    "r2": "models.metrics",
    "reciprocal_ranks": "models.metrics",
    "rmse": "models.metrics",
    "roc_auc": "models.metrics",
    "roc_curve": "models.metrics",
    "set_lr_and_momentum": "models.optimizers",
    "split_parameters": "models.param_groups",
    "square_root_scaled_lr": "models.schedule",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'models' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
