"""The pages of docs/reference, made from the code whenever the documentation is built; none is written by hand.

`python docs/_generate.py FOLDER` writes them without Sphinx.
"""

from __future__ import annotations

import inspect
import re
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic.fields import FieldInfo

NOTE = "<!-- Made by docs/_generate.py. Change the code that this page describes. -->\n"

# By the last name of a setting, where its name does not end in the unit.
UNITS = {
    "epochs": "epochs", "patience": "epochs", "batch_size": "rows", "rows_per_part": "rows", "max_rows": "rows",
    "min_count": "rows", "importance_rows": "rows", "min_window_rows": "rows", "warmup_steps": "steps",
    "layers": "units of each layer", "threads": "threads", "num_threads": "threads", "threads_per_worker": "threads",
    "workers": "processes", "memory_limit": "bytes, or with KiB, MiB, GiB", "days": "days", "embedding_dim": "numbers",
    "cold_every": "nights", "reference_nights": "nights", "max_list": "elements", "max_text": "characters",
    "max_candidates": "items", "max_k": "items", "max_exclude": "items", "queue": "requests",
    "max_in_flight": "requests", "oov_buckets": "ids", "max_size": "ids", "bins": "bins", "distinct": "values",
    "calibration_bins": "bins", "k": "places", "negatives": "items", "artifacts": "", "runs": "",
    "nightly.keep.artifacts": "artifacts", "nightly.keep.runs": "runs", "train.negatives": "",
    "train.start_from": "", "per_positive": "rows", "num_bootstrap": "samples", "ensemble": "models",
    "importance_repeats": "times", "accumulate_steps": "pieces", "seed": "", "retries": "calls",
    "overfetch": "items for each", "groups": "trainings",
}  # fmt: skip
ENDINGS = {"_seconds": "seconds", "_s": "seconds", "_steps": "steps", "_bytes": "bytes", "_rows": "rows",
           "_days": "days", "_width": "numbers"}  # fmt: skip

# A value of settings for which none can be told from type and default, and what else must be set beside one.
EXAMPLES: dict[str, Any] = {
    "name": "clicks",
    "imports": ["my_steps.py"],
    "recipe": "table",
    "device": "cuda:0",
    "cluster": "tcp://10.0.0.5:8786",
    "cluster_settings.memory_limit": "4GiB",
    "artifacts": "/data/artifacts",
    "runs": "/data/runs",
    "features": {"path": "shop.csv"},
    "preprocess.columns": {"city": {"min_count": 10}},
    "preprocess.from": "current",
    "preprocess.indicator": "none",
    "preprocess.scale": "robust",
    "model": {"kind": "dcn", "cross_layers": 4},
    "train.optimizer_settings": {"betas": [0.9, 0.98]},
    "train.schedule_settings": {"pct_start": 0.3},
    "train.max_grad_norm": 0.5,
    "train.losses": {"price": {"kind": "huber"}},
    "train.losses.NAME.delta": 2.0,
    "train.losses.NAME.power": 1.3,
    "train.losses.NAME.class_weights": [1, 5],
    "train.start_from": "current",
    "train.codistill.group": 1,
    "train.window.since": None,
    "train.codistill.folder": "/shared/groups",
    "evaluate.ranking.k": [5, 10],
    "evaluate.ranking.negatives_are_not_in": ["train"],
    "evaluate.ranking.catalogue_is_without": ["train", "valid"],
    "evaluate.ranking.baselines": ["popularity"],
    "evaluate.baselines": ["constant", "boosted"],
    "evaluate.importance_rows": 5000,
    "nightly.notify.command": ["mail", "-s", "night", "me@example.com"],
    "nightly.notify.webhook": "env:NIGHT_HOOK",
    "nightly.notify.on": ["refused", "failed"],
    "nightly.export": ["torch"],
    "nightly.confidence": 0.9,
    "serve.host": "0.0.0.0",
    "serve.token_file": "/run/secrets/token",
    "serve.device": "cuda",
    "track.mlflow.uri": "https://mlflow.example.com",
    "track.mlflow.artifacts": "/data/mlruns",
}
TOGETHER: dict[str, dict[str, Any]] = {
    "train.losses.NAME.delta": {"train.losses.NAME.kind": "huber"},
    "train.losses.NAME.tau": {"train.losses.NAME.kind": "quantile"},
    "train.losses.NAME.power": {"train.losses.NAME.kind": "tweedie"},
    "train.losses.NAME.gamma": {"train.losses.NAME.kind": "focal"},
    "train.prior.train": {"train.prior.serve": 0.01},
    "train.gradients.drop": {"train.gradients.compress": "dct"},
    "train.gradients.refresh_steps": {"train.gradients.compress": "dct"},
    "train.gradients.values": {"train.gradients.compress": "dct"},
    "train.ensemble_by": {"train.ensemble": 4},
    "train.window": {"train.start_from": "current"},
    "train.window.replay": {"train.start_from": "current"},
    "train.window.since": {"train.start_from": "current"},
}


# -- docstrings ------------------------------------------------------------------------------------------------------

SECTION = re.compile(r"^(\w[\w ]*)\n-{3,}\n", re.MULTILINE)


def docstring_sections(text: str | None) -> dict[str, str]:
    """Parts of a numpydoc docstring by title; what stands before the first one has the title ''."""
    parts = SECTION.split(inspect.cleandoc(text or ""))
    return {"": parts[0].strip()} | {
        title: body.strip("\n") for title, body in zip(parts[1::2], parts[2::2], strict=True)
    }


def described(body: str) -> dict[str, str]:
    """What a section such as Parameters says of each name, on one line."""
    found: dict[str, str] = {}
    for entry in re.split(r"\n(?=\S)", body):
        head, _, text = entry.partition("\n")
        names = head.partition(" : ")[0]
        for name in names.split(","):
            found[name.strip().lstrip("*").removesuffix("_")] = " ".join(text.split())
    return {name: text for name, text in found.items() if name}


def prose(text: str) -> str:
    """Text of a docstring as Markdown: pages of docs/ become links, and no letter of it is taken for markup."""
    parts = re.split(r"(`[^`]*`)", text)
    plain = [part if part.startswith("`") else re.sub(r"([*<|])", r"\\\1", part) for part in parts]
    return re.sub(r"\bdocs/([\w/]+)\.md\b", r"[\1](../\1.md)", "".join(plain))


def parameters_of(kind: Any) -> dict[str, str]:
    """What the docstrings of a class and its bases say of each argument; what is as of a base, as the base says it."""
    found: dict[str, str] = {}
    for base in reversed(inspect.getmro(kind)):
        body = "" if base.__module__ == "builtins" else docstring_sections(base.__doc__).get("Parameters", "")
        told = described(body)
        found |= {name: text for name, text in told.items() if name not in found or not text.startswith("As of `")}
    return found


# -- values ----------------------------------------------------------------------------------------------------------


def type_text(annotation: Any) -> str:
    """A type in words of YAML: `whole number`, `text`, `list of text`, choices, `null`."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if hasattr(annotation, "__metadata__"):
        return type_text(arguments[0])
    if origin is Literal:
        return ", ".join(f"`{yaml_text(value)}`" for value in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(type_text(argument) for argument in arguments))
    if origin in (tuple, list):
        return f"list of {type_text(arguments[0])}"
    if origin is dict or (isinstance(origin, type) and issubclass(origin, Mapping)):
        inside = arguments[1]
        return "keys and values" if inside is Any else f"{type_text(inside)} by name"
    names = {bool: "true or false", int: "whole number", float: "number", str: "text", Path: "path",
             type(None): "null", Any: "keys and values", dict: "keys and values", tuple: "list",
             list: "list"}  # fmt: skip
    if annotation in names:
        return names[annotation]
    if isinstance(annotation, type) and (is_dataclass(annotation) or issubclass(annotation, BaseModel)):
        return "a section of settings"
    return f"`{annotation}`"


def bounds_text(field: FieldInfo) -> str:
    """Bounds of a setting, such as `from 0, below 1`."""
    words = {"ge": "from", "gt": "above", "le": "to", "lt": "below"}
    found = [f"{word} {getattr(item, name)}" for item in field.metadata for name, word in words.items()
             if getattr(item, name, None) is not None]  # fmt: skip
    return ", ".join(found)


def yaml_text(value: Any) -> str:
    """A value as it stands in YAML, on one line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {yaml_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(yaml_text, value)) + "]"
    if isinstance(value, str) and (
        value == "" or value in ("true", "false", "null") or re.search(r"[:#,\[\]{}|\"' ]", value)
    ):
        return f'"{value}"' if not re.fullmatch(r"[\w./:-]+", value) else value
    return str(value)


def unit_text(path: str) -> str:
    last = path.rpartition(".")[2]
    if path in UNITS or last in UNITS:
        return UNITS.get(path, UNITS.get(last, ""))
    return next((unit for ending, unit in ENDINGS.items() if last.endswith(ending)), "")


def example_value(path: str, annotation: Any, default: Any) -> Any:
    """A value that is not the default: told by `EXAMPLES`, else by type and default. None where none can be told."""
    if path in EXAMPLES:
        return EXAMPLES[path]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if hasattr(annotation, "__metadata__"):
        return example_value(path, arguments[0], default)
    if origin is Literal:
        return next((value for value in arguments if value != default), None)
    if origin in (Union, types.UnionType):
        found = (example_value(path, item, default) for item in arguments if item is not type(None))
        return next((value for value in found if value is not None), None)
    if annotation is bool:
        return not default
    if annotation is int:
        return default * 2 if isinstance(default, int) and default else 4
    if annotation is float:
        return round(default / 2, 6) if isinstance(default, float) and default else 0.5
    return None


# -- settings --------------------------------------------------------------------------------------------------------


def settings_of(kind: type) -> Iterator[tuple[str, Any, Any, str, str]]:
    """(name, type, default, bounds, description) of each setting; the default is MISSING where there is none."""
    if issubclass(kind, BaseModel):
        for name, field in kind.model_fields.items():
            default = MISSING if field.is_required() else field.get_default(call_default_factory=True)
            yield name, field.annotation, default, bounds_text(field), f"{field.description}."
        return
    hints, words = get_type_hints(kind), parameters_of(kind)
    for item in fields(kind):
        name = item.name.removesuffix("_")
        default = item.default if item.default_factory is MISSING else item.default_factory()
        yield name, hints[item.name], default, "", words.get(name, "")


def sections_inside(annotation: Any) -> tuple[list[type], bool]:
    """Classes of settings that a setting of this type holds, and whether it holds them by name."""
    if isinstance(annotation, type) and (is_dataclass(annotation) or issubclass(annotation, BaseModel)):
        return [annotation], False
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        found = [sections_inside(argument) for argument in arguments]
        return [kind for kinds, _ in found for kind in kinds], any(by_name for _, by_name in found)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return sections_inside(arguments[1])[0], True
    return [], False


def all_settings(kind: type, section: str = "") -> Iterator[tuple[str, Any, Any, str, str]]:
    """Every setting of a class and the sections in it, by dotted path; NAME stands for a name that the user gives."""
    later = []
    for name, annotation, default, bounds, text in settings_of(kind):
        path = f"{section}.{name}" if section else name
        yield path, annotation, default, bounds, text
        inside, by_name = sections_inside(annotation)
        later += [(part, f"{path}.NAME" if by_name else path) for part in inside]
    for part, path in later:
        yield from all_settings(part, path)


def config_settings() -> list[tuple[str, Any, Any, str, str]]:
    """Every setting of a configuration but those of recipe and model; of a path in two sections the first."""
    from gigabatch.pipeline.config.config import RunConfig

    found: dict[str, tuple[str, Any, Any, str, str]] = {}
    for row in all_settings(RunConfig):
        found.setdefault(row[0], row)
    return list(found.values())


def entry(path: str, annotation: Any, default: Any, bounds: str, text: str, example: str = "") -> str:
    """One setting as an item of a definition list with an anchor of its own."""
    is_section = isinstance(default, BaseModel) or is_dataclass(default)
    facts = [f"{type_text(annotation)}{f' {bounds}' if bounds else ''}"]
    facts += [f"unit: {unit_text(path)}"] if unit_text(path) else []
    facts += ["**required**" if default is MISSING else f"default `{yaml_text(default)}`"] if not is_section else []
    facts += [f"example `{example}`"] if example else []
    return f"[`{path}`]{{#{path}}}\n: {prose(text).rstrip()}\\\n  {' · '.join(facts)}\n"


def settings_page() -> str:
    """Every setting of a configuration: type, unit, bounds, default, example."""
    from gigabatch.features.recipes import RECIPES, recipe_class

    rows = config_settings()
    out = [NOTE, "# Settings\n",
           "A run is one YAML file. Override a setting on the command line with its dotted name: `gigabatch train "
           "--config run.yaml train.epochs=3`. Unknown keys and values out of bounds are refused before any work. "
           "Settings of models stand in [models](models.md), arguments of steps in "
           "[operators](operators.md).\n"]  # fmt: skip
    titles: dict[str, list[str]] = {}
    for path, annotation, default, bounds, text in rows:
        section = path.rpartition(".")[0]
        value = example_value(path, annotation, default)
        given = {path: value} | TOGETHER.get(path, {}) if value is not None or path in EXAMPLES else {}
        example = " ".join(f"{dotted}={yaml_text(item)}" for dotted, item in given.items())
        titles.setdefault(section, []).append(entry(path, annotation, default, bounds, text, example))
    for section, entries in titles.items():
        out += [f"## `{section}`\n" if section else "## The run\n", *entries]
    for name in sorted(RECIPES):
        kind = recipe_class(name).Settings
        out += [f"## `features`, recipe `{name}`\n", f"{prose(docstring_sections(kind.__doc__)[''])}\n"]
        out += [
            entry(f"{name}.{row[0]}", *row[1:]).replace(f"[`{name}.", "[`features.", 1) for row in all_settings(kind)
        ]
    return "\n".join(out)


def models_page() -> str:
    """Every model with its settings, then the optimizers and schedules."""
    from gigabatch.models.optimizers.registry import OPTIMIZERS
    from gigabatch.models.optimizers.schedule import SCHEDULES
    from gigabatch.models.shelf import MODELS, model_class

    out = [NOTE, "# Models, optimizers, schedules\n",
           "Choose a model by `model.kind`; its settings stand beside it. [Which one for which data]"
           "(../models/README.md).\n"]  # fmt: skip
    for name in MODELS:
        kind = model_class(name)
        first = [prose(docstring_sections(kind.__doc__)[""].partition("\n\n")[0]), *equations(kind.__module__)]
        facts = f"`gigabatch.{kind.__name__}`; [when, evidence, pitfalls](../models/{name}.md)"
        out += [f"## `{name}`\n", *(f"{paragraph}\n" for paragraph in first), f"{facts}\n"]
        out += [
            entry(f"{name}.{row[0]}", *row[1:]).replace(f"[`{name}.", "[`", 1) for row in settings_of(kind.Settings)
        ]
    out += ["## Optimizers\n", "Choose one by `train.optimizer`; give arguments in `train.optimizer_settings`.\n"]
    for name, build in OPTIMIZERS.items():
        out += callable_entry(name, build, leave_out=("model", "lr", "weight_decay", "max_grad_norm"))
    out += ["## Schedules\n", "Choose one by `train.schedule`; give arguments in `train.schedule_settings`.\n"]
    for name, build in SCHEDULES.items():
        out += callable_entry(name, build, leave_out=("lr", "lr_max", "num_steps", "step"))
    return "\n".join(out)


def equations(module: str) -> list[str]:
    """What the head of a model's file tells below its first line, by paragraphs: equations, source, when to use it."""
    paragraphs = (inspect.getdoc(sys.modules[module]) or "").split("\n\n")[1:]
    return [
        f"```text\n{inspect.cleandoc(text)}\n```" if text.startswith("    ") else prose(text)
        for text in paragraphs
        if not text.startswith("Shapes: ")
    ]


def callable_entry(name: str, build: Any, leave_out: tuple[str, ...]) -> list[str]:
    """A builder's arguments, told by its Parameters or by `name: what it does.` in its text."""
    parts = docstring_sections(inspect.getdoc(build))
    words = described(parts.get("Parameters", ""))
    text = " ".join(parts[""].split())
    out = [f"### `{name}`\n", f"{prose(parts[''].partition(chr(10) * 2)[0])}\n"]
    for item in inspect.signature(build).parameters.values():
        if item.name in leave_out:
            continue
        default = "**required**" if item.default is item.empty else f"default `{yaml_text(item.default)}`"
        kind = item.annotation if isinstance(item.annotation, str) else inspect.formatannotation(item.annotation)
        told = re.search(rf"(?<!\w){item.name}: (.+?\.)(?:\s|$)", text)
        said = prose(words.get(item.name, told[1] if told else ""))
        out.append(f"- `{item.name}` ({default}, `{kind}`){': ' * bool(said)}{said}")
    return [*out, ""]


# -- operators, metrics ----------------------------------------------------------------------------------------------


def operators_page() -> str:
    """Every operator of a workflow with its arguments, its errors and an example."""
    from gigabatch.features.operators import operator_class, operator_names
    from gigabatch.features.operators.__main__ import markdown_table

    by_folder: dict[str, list[str]] = {}
    for name in operator_names():
        by_folder.setdefault(operator_class(name).__module__.split(".")[-2], []).append(name)
    out = [
        NOTE,
        "# Operators\n",
        "A step names an operator and its arguments: `- clip: {column: delay, low: -30, high: 180}` under "
        '`features.steps`, or `Clip("delay", -30, 180)` in Python. [How steps are put together](../workflow.md).\n',
        re.sub(r"^\| `(\w+)` \|", r"| [`\1`](#\1) |", markdown_table(), flags=re.MULTILINE),
    ]
    for folder in ("missing", "numbers", "categories", "history", "groups", "lists", "rows"):
        out.append(f"## {folder.capitalize()}\n")
        for name in by_folder.pop(folder, []):
            out += operator_entry(name, operator_class(name))
    assert not by_folder, f"docs/_generate.py knows no folder {', '.join(by_folder)} of operators"
    return "\n".join(out)


def operator_entry(name: str, kind: Any) -> list[str]:
    parts = docstring_sections(kind.__doc__)
    words = parameters_of(kind)
    out = [f"### `{name}`\n", f"`{kind.__name__}`, {kind.kind()}. {prose(parts[''])}\n"]
    for item in inspect.signature(kind).parameters.values():
        default = "**required**" if item.default is item.empty else f"default `{yaml_text(item.default)}`"
        annotation = item.annotation if isinstance(item.annotation, str) else inspect.formatannotation(item.annotation)
        out.append(f"- `{item.name}` ({default}, `{annotation}`): {prose(words.get(item.name, ''))}")
    if "Raises" in parts:
        raised = [f"`{error}`: {prose(text)}" for error, text in described(parts["Raises"]).items()]
        out.append("\n" + " ".join(raised))
    if "Examples" in parts:
        out.append(f"\n```pycon\n{parts['Examples'].strip()}\n```\n")
    return [*out, ""]


def metric_functions() -> dict[str, Any]:
    """Every public function and class of `models/metrics`, by name."""
    from gigabatch.models.metrics import pointwise, ranking

    return {
        name: found
        for module in (pointwise, ranking)
        for name, found in vars(module).items()
        if not name.startswith("_") and name != "check_rows" and name != "as_positives"
        and (inspect.isfunction(found) or inspect.isclass(found)) and found.__module__ == module.__name__
    }  # fmt: skip


def metrics_page() -> str:
    """Every metric's function, with what it takes and gives."""
    out = [NOTE, "# Metrics\n",
           "`gigabatch.models.metrics.pointwise` and `.ranking`. [Which a report shows, and what they mean]"
           "(../metrics.md).\n"]  # fmt: skip
    for name, found in metric_functions().items():
        parts = docstring_sections(found.__doc__)
        out += [f"## `{name}`\n", f"```python\n{name}{signature_text(found)}\n```\n", f"{prose(parts[''])}\n"]
        for title in ("Parameters", "Returns", "Raises"):
            for item, text in described(parts.get(title, "")).items():
                out.append(f"- `{item}`: {prose(text)}")
        if "Examples" in parts:
            out.append(f"\n```pycon\n{parts['Examples'].strip()}\n```\n")
        if inspect.isclass(found):
            for method, body in vars(found).items():
                if inspect.isfunction(body) and not method.startswith("_"):
                    said = docstring_sections(body.__doc__)[""]
                    out.append(f"- `.{method}{signature_text(body)}` {prose(' '.join(said.split()))}")
        out.append("")
    return "\n".join(out)


def signature_text(found: Any) -> str:
    text = str(inspect.signature(found)).replace("torch.Tensor", "Tensor").replace("'", "")
    return re.sub(r"\(self(, )?", "(", text)


# -- commands, Python ------------------------------------------------------------------------------------------------


def commands_page() -> str:
    """Every command with its arguments and options."""
    import typer

    from gigabatch.pipeline.commands.app import COMMANDS, make_app

    app = typer.main.get_command(make_app())
    out = [
        NOTE,
        "# Commands\n",
        "Every command takes `-v` (log with times and tracebacks) and `-q` (results, warnings and errors alone), and "
        "ends with 0, or 2 for a mistake that you can mend. [Which run answers, output, shells](../commands.md).\n",
    ]
    for group, functions in COMMANDS.items():
        out.append(f"## {group}\n")
        for name in functions:
            command = app.commands[name]  # type: ignore[attr-defined]
            arguments = [item for item in command.params if item.param_type_name == "argument"]
            usage = " ".join(
                [
                    "gigabatch",
                    name,
                    "[OPTIONS]",
                    *(f"[{item.metavar or item.name}]{'...' if item.nargs < 0 else ''}" for item in arguments),
                ]
            )
            out += [f"### `gigabatch {name}`\n", f"{prose(command.help or '')}\n", f"```text\n{usage}\n```\n"]
            for item in command.params:
                if item.name in ("verbose", "quiet", "help"):
                    continue
                names = ", ".join(f"`{option}`" for option in item.opts) if item.param_type_name == "option" else (
                    f"`{item.metavar or item.name}`"
                )  # fmt: skip
                shown = item.show_default if isinstance(item.show_default, str) else item.default
                is_said = shown is not None and not callable(shown) and shown not in ("", [], (), False, True)
                told = f" (default: {prose(str(shown))})" if is_said else ""
                out.append(f"- {names}: {prose(getattr(item, 'help', None) or '')}{told}")
            out.append("")
    return "\n".join(out)


def python_page() -> str:
    """Every public name of `gigabatch`, from its docstring."""
    import gigabatch

    out = [
        NOTE,
        "# Python\n",
        "`import gigabatch` gives these names. [How they are used](../python.md).\n",
        "```{eval-rst}",
    ]
    for name in sorted(gigabatch.__all__, key=str.lower):
        if name == "__version__":
            continue
        found = getattr(gigabatch, name)
        directive = "autoclass" if inspect.isclass(found) else "autofunction"
        out += [f".. {directive}:: gigabatch.{name}", *(MEMBERS if directive == "autoclass" else []), ""]
    return "\n".join([*out, "```", ""])


MEMBERS = ["   :members:", "   :exclude-members: Settings, set_fit_request, set_score_request, set_predict_request"]

PAGES = {
    "settings": settings_page,
    "models": models_page,
    "operators": operators_page,
    "metrics": metrics_page,
    "commands": commands_page,
    "python": python_page,
}


def write_pages(folder: Path) -> None:
    """Write each page of `PAGES`; files that hold the same already stay, so that Sphinx reads them once."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        path, text = folder / f"{name}.md", page()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    write_pages(Path(sys.argv[1]))
