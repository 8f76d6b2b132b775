"""The command contract: what raw files must be like."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gigabatch.pipeline.commands.options import Config, Overrides


def contract(
    config: Config,
    overrides: Overrides,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", show_default="runs/<name>/contract.yaml", help="File to write."),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Replace a contract that a person has edited. What follows from no file is kept."),
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Check new files, and write nothing.")] = False,
    accept: Annotated[
        str | None, typer.Option("--accept", metavar="FILE", help="Take a file that is in quarantine, or would be.")
    ] = None,
) -> int:
    """Learn from raw files what new ones must be like, check new ones, or accept one (docs/contract.md)."""
    from gigabatch.pipeline.config.config import load_config
    from gigabatch.pipeline.contract.decide import accept as accept_file
    from gigabatch.pipeline.contract.decide import check_new, learn_contract, quarantined
    from gigabatch.pipeline.contract.terms import ContractError

    settings = load_config(config, overrides, whole="features")
    if sum((check, accept is not None, out is not None or force)) > 1:
        raise ContractError("contract: give one of --check, --accept, and --out or --force.")
    if accept is not None:
        print(accept_file(settings, accept))
        return 0
    if check:
        reports = check_new(settings)
        for report in reports:
            print(f"{'accepted' if report.accepted else 'refused'}: {report.path}")
            for text in (*report.reasons, *report.warnings):
                print(f"  {text}")
        print(f"{len(reports)} new file(s), {sum(not report.accepted for report in reports)} refused")
        if waiting := quarantined(settings):
            print(f"in quarantine: {', '.join(waiting)} (--accept FILE takes one all the same)")
        return 0 if all(report.accepted for report in reports) else 20
    learned = learn_contract(settings, out, force)
    for name, (files, rows) in learned.counts.items():
        alone = "; a single one shows no spread, so its bounds are wide" if files == 1 else ""
        print(f"learned from {files} file(s) of kind {name!r}, {rows:,} rows{alone}")
    if learned.left_out:
        print(f"not from {learned.left_out} file(s) that are in quarantine or new")
    for note in learned.notes:
        print(note)
    print(learned.path)
    print("Read it and edit its bounds. gigabatch contract --check holds new files against it, and so does each night.")
    return 0
