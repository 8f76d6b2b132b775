"""A rehearsal: what tonight's job would do, found by the night's own functions, with no training and no promotion.

It reads what the night reads and asks in the order in which the night asks. Nothing in `runs/<name>/` changes. What it
writes lies in the store, where the night finds it again: checksums, parsed files and the features stage's artifact.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gigabatch.features.encoding.preprocessor import Preprocessor
from gigabatch.features.errors import DataError
from gigabatch.loaders.errors import LoaderError
from gigabatch.pipeline.config.config import RunConfig, load_config
from gigabatch.pipeline.contract.decide import check_new
from gigabatch.pipeline.nightly.codes import FAILED, REFUSED
from gigabatch.pipeline.nightly.comparison import cannot_be_judged, changed_since, window_rows
from gigabatch.pipeline.nightly.learning import other_model, require_times
from gigabatch.pipeline.nightly.rehearsal import (
    STAGES,
    THERE,
    TO_MAKE,
    Rehearsal,
    ask_files,
    ask_models,
    ask_retention,
    end_as_kept,
)
from gigabatch.pipeline.nightly.start import COLD, WARM, tonight
from gigabatch.pipeline.runs.find import home_of
from gigabatch.pipeline.runs.pointers import read_pointers
from gigabatch.pipeline.runs.verify import WEIGHTS, weights_of
from gigabatch.pipeline.stages.stages import Encoded, Features, Pipeline, training_period
from gigabatch.pipeline.stages.start import require_lasting_values
from gigabatch.pipeline.stopping import stopped_by
from gigabatch.pipeline.store.keys import BLAKE2B, file_checksum
from gigabatch.pipeline.training.window import NothingNew

log = logging.getLogger(__name__)


def run_rehearsal(config: str | Path, overrides: Sequence[str] = (), as_json: bool = False) -> int:
    """The command: prints what tonight would do; 0, or 20, 30 or 40 where the night would end so."""
    found = rehearse(load_config(config, overrides))
    return found.tell(as_json)


def rehearse(config: RunConfig) -> Rehearsal:
    """What tonight would do, as far as it can be known without training.

    Parameters
    ----------
    config
        The configuration.

    Returns
    -------
    Rehearsal
        Also of a night that would be refused or fail, up to where it would.
    """
    found = Rehearsal(config.name)
    try:
        _ask(config, home_of(config), found)
    except Exception as error:
        if stopped_by(error):
            raise
        if not isinstance(error, ValueError):
            log.exception("nightly --dry-run")
        found.end(FAILED, f"Tonight would fail: {error}")
    return found


def _ask(config: RunConfig, home: Path, found: Rehearsal) -> None:
    if (models := ask_models(config, home, found)) is None:
        return
    current, reference = models
    pipeline = Pipeline(config)
    if (decision := ask_files(config, check_new(config), found)) is None:
        return
    try:
        features = pipeline.features(decision.state)
        found.stages["features"] = THERE if features.artifact.skipped else "made by this rehearsal"
        found.rows |= features.rows
        config, how, why = tonight(config, current, features.schema, decision.cold)
        found.start = {"how": how, "why": why}
        features = replace(features, pipeline=pipeline.with_config(config))
        require_times(features)
        if not _ask_stages(features, current, found):
            _ask_comparison(features, current, reference, found)
    except NothingNew as error:
        end_as_kept(found, f"nothing new. {error}")
    except (DataError, LoaderError) as error:
        found.end(REFUSED, f"Data would be refused: {error}")
        return
    files = {} if decision.state is None else decision.state.files
    ask_retention(config, {files[name].kind for name in decision.accepted}, found)
    if not found.verdict:
        rows = f"{found.rows['trained']:,} rows, compares on {found.rows['compared']:,}"
        found.end(0, f"Tonight trains {found.start['how']} on {rows}, and promotes or keeps.")


class NotEncoded(Encoded):
    """Rows that are not encoded yet, with the preprocessor that they will be encoded with, before it grows.

    `warm_start` and `window` need no more of it than its columns, fills, scales and the values of the start.
    """

    @property
    def preprocessor(self) -> Preprocessor:
        pipeline = self.features.pipeline
        assert pipeline.start is not None, "the night's warm start grows a preprocessor"
        return pipeline.start.preprocessor.carried_to(self.features.schema, pipeline.config.preprocess.encoding)


def _ask_stages(features: Features, current: Path | None, found: Rehearsal) -> bool:
    """What is there of tonight's stages, and on how many rows it trains; whether its model is known to be kept out."""
    pipeline = features.pipeline
    if pipeline.start is not None:
        require_lasting_values(features.workflow, features.schema)
    artifact = features.encoded_before()
    found.stages |= dict.fromkeys(STAGES, TO_MAKE) | ({} if artifact is None else {"encode": THERE})
    found.rows["trained"] = features.rows["train"]
    if artifact is None and pipeline.start is None:
        return False
    encoded = (Encoded if artifact is not None else NotEncoded)(features, artifact)  # type: ignore[arg-type]
    if encoded.cold_note and found.start["how"] == WARM:
        found.start = {"how": COLD, "why": encoded.cold_note}
    if encoded.window is not None:
        found.rows |= {"trained": encoded.num_trained, "window": encoded.window.counts()}
    if artifact is None:
        return False
    trained = pipeline.store.find("train", encoded.train_key)
    if trained is None:
        return False
    found.stages["train"] = THERE
    weights = file_checksum(trained.path / WEIGHTS, BLAKE2B)
    blocked = read_pointers(home_of(pipeline.config)).blocked.items()
    if back := [name for name, entry in blocked if entry.get("weights") == weights]:
        whose = f"run {back[0]}, which was rolled back"
    elif current is not None and weights_of(current) == weights:
        whose = f"the current run, {current.name}"
    else:
        return False
    found.end(0, f"Tonight would be kept (exit code 10): its weights are those of {whose}.")
    return True


def _ask_comparison(features: Features, current: Path | None, reference: Path | None, found: Rehearsal) -> None:
    """On how many rows the models would be compared; raises what the night would be refused or fail for then."""
    pipeline, new = features.pipeline, "new model" if current is None else "new one"
    ends = {new: training_period(features)["trained_until"]}
    if current is not None:
        other = other_model(pipeline, current)
        if changed := changed_since(other, features):
            raise DataError(changed)
        if reason := cannot_be_judged(other.bundle, features):
            found.end(FAILED, f"Tonight would train and fail: the current model {reason}.")
            return
        ends["current model"] = other.bundle.info["trained_until"]
    if reference is not None:
        other = other_model(pipeline, reference)
        reason = changed_since(other, features) or cannot_be_judged(other.bundle, features)
        if reason:
            found.notes.append(f"The reference, run {reference.name}, would not be compared: it {reason}.")
        else:
            ends["reference"] = other.bundle.info["trained_until"]
    found.rows["compared"] = len(window_rows(features, ends))
