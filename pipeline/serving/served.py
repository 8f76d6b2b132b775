"""A bundle made ready to answer: loaded, its catalogues encoded, warmed, and tested against itself."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gigabatch.models.model import SCORE_ATOL, SCORE_RTOL
from gigabatch.pipeline.bundle import Bundle, load_bundle, model_outputs, target_loss
from gigabatch.pipeline.config.serving import ServeSettings
from gigabatch.pipeline.embedding.embeddings import STAGE, StoredEmbeddings
from gigabatch.pipeline.runs.verify import require_own
from gigabatch.pipeline.serving.catalogue import Catalogue
from gigabatch.pipeline.serving.errors import Refusal, ServingError
from gigabatch.pipeline.serving.parallel_loops import one_at_a_time
from gigabatch.pipeline.serving.ranker import Asker, Ranker, null_row
from gigabatch.pipeline.serving.scorer import RowScorer
from gigabatch.pipeline.store.artifacts import MANIFEST
from gigabatch.pipeline.store.files import ArtifactError

log = logging.getLogger(__name__)
TESTED = 64  # users and items that a new bundle is tested on
HALF_TOLERANCE = 0.02  # of a prediction, in deviations of its target, where vectors are stored as float16
# Of float32 vectors: times what scores may be apart by rounding (models/model.py). Vectors of other weights are much
# farther off, and rounding in a model of very large logits must not stop the service.
SELF_TEST_MARGIN = 100


@dataclass(frozen=True)
class ServedBundle:
    """What answers requests. ranker is None where the bundle cannot rank; `obstacle` then says why.

    created_utc: when the run was written; None where its folder does not say.
    """

    folder: Path
    bundle: Bundle
    scorer: RowScorer
    ranker: Ranker | None
    obstacle: str = ""
    created_utc: str | None = None
    loaded_at: float = field(default_factory=time.time)

    @property
    def bundle_id(self) -> str:
        """The run's id: the name of its folder."""
        return self.folder.name

    @property
    def kind(self) -> str:
        return type(self.bundle.model).__name__

    @property
    def can_recommend(self) -> bool:
        return self.ranker is not None and not self.ranker.recommend_obstacle

    def require_ranker(self) -> Ranker:
        """The ranker; `Refusal` 409 where there is none."""
        if self.ranker is None:
            raise Refusal(409, "not_available", f"this bundle cannot rank: {self.obstacle}")
        return self.ranker


def load_served(folder: Path, settings: ServeSettings | None = None) -> ServedBundle:
    """A run's folder (`model/`, and `embeddings/` for a recommender), or a bundle's alone, ready to answer as the
    settings have it.

    Without stored embeddings rows can be scored, but nothing ranked. Errors: `BundleError`, `EmbeddingsError` and
    `ServingError`, also where the bundle fails its own test.
    """
    settings = settings or ServeSettings()
    manifest = _manifest(folder)
    bundle = load_bundle(bundle_folder(folder), settings.device)
    bundle.model.eval().requires_grad_(False)
    ranker, obstacle = None, ""
    if bundle.schema.entity("user") is None or bundle.schema.entity("item") is None:
        obstacle = "its schema does not name which columns are those of user and item."
    elif bundle.schema.targets[0].task == "multiclass":
        obstacle = f"its first target, {bundle.schema.targets[0].name!r}, has classes; items are ranked by one number."
    elif bundle.schema.targets[0].quantiles:
        obstacle = (
            f"its first target, {bundle.schema.targets[0].name!r}, has quantiles; items are ranked by one number."
        )
    elif not _is_stored(folder / STAGE):
        obstacle = "its users and items are not stored. Run gigabatch embed."
    else:
        ranker = open_ranker(bundle, StoredEmbeddings.load(folder / STAGE, bundle), settings.max_scan)
    served = ServedBundle(folder, bundle, RowScorer(bundle), ranker, obstacle, manifest.get("created_utc"))
    with one_at_a_time():
        self_test(served)
    return served


def _is_stored(embeddings: Path) -> bool:
    """Whether embeddings lie there, be they damaged; a first `gigabatch embed` that goes on, or was killed, has left
    nothing but hidden names."""
    return embeddings.is_dir() and not all(path.name.startswith(".") for path in embeddings.iterdir())


def bundle_folder(folder: Path) -> Path:
    """Where the bundle of a run's folder lies; the folder itself where it is what `Bundle.save` wrote."""
    return folder if (folder / "bundle.json").exists() else folder / "model"


def _manifest(folder: Path) -> dict[str, Any]:
    """Of a run that lies in its own folder; empty where a bundle alone is served."""
    if not (folder / MANIFEST).exists():
        return {}
    manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
    try:
        require_own(folder, manifest)
    except ArtifactError as error:
        raise ServingError(str(error)) from error
    return manifest


def open_ranker(bundle: Bundle, stored: StoredEmbeddings, max_scan: int | None = None) -> Ranker:
    """The ranker over a bundle's stored users and items."""
    if stored.user is None or stored.item is None:
        raise ServingError(f"embeddings {stored.folder}: users or items are missing. Run gigabatch embed.")
    users, items = (
        Catalogue(
            entity.name, entity.dtype, entity.keys.tolist(), entity.ids, entity.floats, entity.vectors,
            entity.lists,
        )
        for entity in (stored.user, stored.item)
    )  # fmt: skip
    return Ranker(bundle, users, items, stored.item.index, max_scan)


def self_test(served: ServedBundle) -> None:
    """Raise `ServingError` unless the bundle's own routes give what its model gives for the same rows (equal but for
    rounding), all finite.

    That also warms them. Vectors that were stored for other weights are found here.
    """
    found = served.scorer([null_row(served.bundle)], raw=False)
    if any(value is None for column in found.values() for value in column):
        raise ServingError(f"bundle {served.folder}: a row of nulls is predicted to be no number: {found}.")
    warm_raw(served.scorer)
    ranker = served.ranker
    if ranker is None:
        return
    items = np.unique(np.linspace(0, len(ranker.items) - 1, min(TESTED, len(ranker.items))).astype(np.int64))
    users = np.unique(np.linspace(0, len(ranker.users) - 1, min(4, len(ranker.users))).astype(np.int64))
    askers = [ranker.asker_of_row(int(row)) for row in users]
    askers.append(ranker.asker_of_row(None))
    scale = next((scale for scale in served.bundle.model.target_scales if scale.target == 0), None)
    mean, unit = (0.0, 1.0) if scale is None else (scale.mean, scale.std)
    for asker in askers:
        scores = ranker.rank(asker, items)
        expected = predicted(ranker, asker, items)
        if not bool(expected.isfinite().all()):
            raise ServingError(f"bundle {served.folder}: a score is no finite number. Train again.")
        apart = (scores - expected).abs()
        rounding = SELF_TEST_MARGIN * (SCORE_ATOL * unit + SCORE_RTOL * (expected - mean).abs())
        allowed = rounding if ranker.exact else torch.full_like(rounding, HALF_TOLERANCE * unit)
        if not bool((apart <= allowed).all()):
            raise ServingError(
                f"bundle {served.folder}: scores from stored vectors differ from the model's by up to "
                f"{float(apart.max()):.3g}. The vectors are of other weights. Run gigabatch embed."
            )
    if served.can_recommend:
        ranker.recommend(askers[0], 1, (), 1)


def warm_raw(scorer: RowScorer) -> None:
    """Score a raw row, where the bundle takes any, so that no request waits for loops to be compiled."""
    if scorer.raw is None:
        return
    try:
        scorer([scorer.raw.example()], raw=True)
    except Refusal:  # a step refuses nulls, as it will those of requests
        pass
    except Exception:
        log.warning("a raw row fails in a step; such rows will be answered by 500", exc_info=True)


def predicted(ranker: Ranker, asker: Asker, places: np.ndarray) -> Tensor:
    """Predictions [N] of the first target by the whole model, as `Bundle.predict` computes them."""
    ids, floats, lists = ranker.whole_rows(asker, torch.from_numpy(places).to(ranker.bundle.device))
    outputs = torch.cat(list(model_outputs(ranker.bundle.model, ids, floats, lists)))
    return target_loss(ranker.bundle.schema).predict(outputs)[0].cpu()
