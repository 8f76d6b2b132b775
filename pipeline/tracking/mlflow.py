"""Runs in MLflow: parameters, metrics by step, artifacts, and the promoted run as the alias `champion`.

A run is logged once it is whole, from its folder, so one that was killed leaves no half of itself there; one that is
logged already, by its id, is not logged again. A server that cannot be reached changes nothing of a run: that is logged
as an error. (`mlflow-skinny` with `sqlalchemy` and `alembic` is what `sqlite:///` needs.)
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from gigabatch.pipeline.config.config import ConfigError, MlflowSettings
from gigabatch.pipeline.store.files import json_text

log = logging.getLogger(__name__)
RUN, MEASURED, CHAMPION = "gigabatch.run", "gigabatch.measured", "champion"
FILES = ("report.html", "summary.json", "metrics.jsonl")
MOST = {"params": 100, "metrics": 1000}  # of one request of MLflow's REST interface
DEFAULTS = {  # of MLflow's environment; by its own a server that is not there is asked for four minutes
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
LONGEST = 6000  # characters of a parameter
EXISTS = "RESOURCE_ALREADY_EXISTS"


def require_mlflow(settings: MlflowSettings) -> None:
    """Raise `ConfigError`, before any work, where a package that the URI needs is not there."""
    names = ["mlflow", *(("sqlalchemy", "alembic") if "://" in settings.uri and _is_database(settings.uri) else ())]
    for name in names:
        try:
            __import__(name)
        except ImportError as error:
            raise ConfigError(f"track.mlflow: needs {name}: pip install 'gigabatch[track]'.") from error


def track_run(settings: MlflowSettings, run: Path, name: str) -> None:
    """Log a whole run. run: its folder; name: of the configuration, which the experiment has, too."""
    try:
        _log_run(settings, run, name)
    except Exception as error:  # of a server, a database, a package: none of them may undo a run
        log.error("run %s was not logged to MLflow (%s): %s", run.name, _shown(settings.uri), error)


def track_champion(settings: MlflowSettings, run: Path, name: str) -> None:
    """Register a run as a version of the model `name`, once, and move the alias `champion` to it."""
    try:
        client = _client(settings)
        logged = _log_run(settings, run, name)
        try:
            client.create_registered_model(name)
        except Exception as error:
            if getattr(error, "error_code", None) != EXISTS:
                raise
        known = [v for v in client.search_model_versions(f"name = '{_quoted(name)}'") if v.tags.get(RUN) == run.name]
        version = known[0] if known else client.create_model_version(
            name, source=str((run / "model").resolve()), run_id=logged, tags={RUN: run.name}
        )  # fmt: skip
        client.set_registered_model_alias(name, CHAMPION, version.version)
    except Exception as error:
        log.error("run %s was not made champion in MLflow (%s): %s", run.name, _shown(settings.uri), error)


def _log_run(settings: MlflowSettings, run: Path, name: str) -> str:
    """The id that MLflow has for the run, which is logged where it has none."""
    from mlflow.entities import Metric, Param

    client = _client(settings)
    found = client.get_experiment_by_name(name)
    folder = None if settings.artifacts is None else str(settings.artifacts.absolute())
    experiment = found.experiment_id if found else client.create_experiment(name, artifact_location=folder)
    known = client.search_runs([experiment], f"tags.`{RUN}` = '{run.name}' and attributes.status = 'FINISHED'")
    if known:
        return str(known[0].info.run_id)
    summary = json.loads((run / "summary.json").read_text())
    created = int(datetime.fromisoformat(summary["created_utc"]).timestamp() * 1000)
    tags = {RUN: run.name} | ({MEASURED: measured["id"]} if (measured := summary.get("measured")) else {})
    made = client.create_run(experiment, start_time=created, tags=tags, run_name=run.name).info.run_id
    params = [Param(key, value[:LONGEST]) for key, value in _flat(summary["config"])]
    metrics = [Metric(key, value, created, step) for key, value, step in _metrics(run, summary)]
    for start in range(0, len(params), MOST["params"]):
        client.log_batch(made, params=params[start : start + MOST["params"]])
    for start in range(0, len(metrics), MOST["metrics"]):
        client.log_batch(made, metrics=metrics[start : start + MOST["metrics"]])
    for file in FILES:
        if (run / file).exists():
            client.log_artifact(made, str(run / file))
    client.set_terminated(made, "FINISHED", int(time.time() * 1000))
    return str(made)


def _client(settings: MlflowSettings) -> Any:
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)  # before the import, which would call home
    from mlflow import MlflowClient

    return MlflowClient(settings.uri, settings.uri)


def _is_database(uri: str) -> bool:
    return uri.split(":", 1)[0].split("+", 1)[0] in ("sqlite", "postgresql", "mysql", "mssql")


def _metrics(run: Path, summary: Mapping[str, Any]) -> Iterator[tuple[str, float, int]]:
    """Names, values and steps: of the learning curve, and of every target and split at the end. Of a final run those of
    the run that it was measured by, as its own few rows of valid and test are no measurement."""
    last = 0
    for line in (run / "metrics.jsonl").read_text().splitlines():
        point = json.loads(line)
        last = int(point["step"])
        for name in ("train_loss", *(key for key in point if key.startswith("valid_")), "lr"):
            if point.get(name) is not None:
                member = f"member-{point['member']}/" if "member" in point else ""
                yield f"{member}{name}", float(point[name]), last
    for split, targets in (summary.get("measured") or summary)["targets"].items():
        for target, values in targets.items():
            for name, value in values.items():
                if isinstance(value, int | float):
                    several = f"{_plain(target)}/" if len(targets) > 1 else ""
                    yield f"{split}/{several}{name}", float(value), last
    for stage, seconds in summary["seconds"].items():
        yield f"seconds/{stage}", float(seconds), last


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Settings by their dotted keys, as text."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flat(inner, f"{prefix}.{_plain(str(key))}" if prefix else _plain(str(key)))
    else:
        yield prefix, value if isinstance(value, str) else json_text(value)


def _plain(name: str) -> str:
    """A name that MLflow takes: letters, digits, `_-./ ` alone; another character is its code, so that no two names
    become one."""
    return "".join(c if (c.isascii() and c.isalnum()) or c in "_- " else f".{ord(c):x}." for c in name) or "."


def _quoted(name: str) -> str:
    return name.replace("'", "''")


def _shown(uri: str) -> str:
    """Without a user's name and password."""
    scheme, separator, rest = uri.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"
