"""Fuzz a target with atheris: `python tests/fuzz/run.py TARGET [SECONDS | FILE]`; `make fuzz` runs them all.

See targets.py for what counts as a finding. Without atheris (`pip install 'gigabatch[fuzz]'`) a file can be played, not
searched for.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]
FINDINGS = Path(__file__).parent / "findings"


def main(target: str, what: str) -> None:
    if not what.isdigit():
        import targets

        print("refused" if targets.run(target, Path(what).read_bytes()) else "taken")
        return
    import atheris

    # Whatever is imported in this block is watched for coverage; the libraries below it are imported before.
    import numba  # noqa: F401
    import pandas  # noqa: F401
    import torch  # noqa: F401

    with atheris.instrument_imports(include=["gigabatch", "json"]):
        import targets
    corpus = ROOT / ".fuzz" / target
    corpus.mkdir(parents=True, exist_ok=True)
    FINDINGS.mkdir(exist_ok=True)
    for number, seed in enumerate(targets.seeds()[target]):
        (corpus / f"seed-{number}").write_bytes(seed)
    options = [f"-max_total_time={what}", f"-artifact_prefix={FINDINGS}/{target}-", "-rss_limit_mb=2048", "-timeout=20",
               "-max_len=65536", "-print_final_stats=1"]  # fmt: skip
    atheris.Setup([sys.argv[0], *options, str(corpus)], lambda content: targets.run(target, content) and None)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "60")
