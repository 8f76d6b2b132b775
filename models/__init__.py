"""Batches to scores: models, and what training and judging them takes. Importing it does nothing else."""

from models.embeddings import EmbeddingTables, embedding_width
from models.errors import ModelError
from models.inputs import ModelInputs
from models.lamb import Lamb, lamb_param_groups
from models.losses import TargetLoss
from models.metrics import (
    CalibrationCurve,
    RocCurve,
    accuracy,
    calibration_curve,
    expected_calibration_error,
    log_loss,
    mae,
    multiclass_log_loss,
    r2,
    rmse,
    roc_auc,
    roc_curve,
)
from models.optimizers import build_optimizer, set_lr_and_momentum
from models.param_groups import ParameterSplit, split_parameters
from models.ranking_metrics import grouped_mrr, reciprocal_ranks
from models.schedule import Constant, OneCycle, Schedule, WarmupPolynomial, square_root_scaled_lr
from models.tabular import TabularModel, TabularSettings

__all__ = [
    "CalibrationCurve",
    "Constant",
    "EmbeddingTables",
    "Lamb",
    "ModelError",
    "ModelInputs",
    "OneCycle",
    "ParameterSplit",
    "RocCurve",
    "Schedule",
    "TabularModel",
    "TabularSettings",
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
