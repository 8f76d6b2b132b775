#!/bin/sh
# Compile the loops of all stages into NUMBA_CACHE_DIR: those that are listed on all cores, what else a first run and a
# warm night call by these, of a made-up log, thrown away.
set -eu
gigabatch warm
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cat >night.yaml <<'YAML'
name: compile
recipe: trivago
device: cpu
features: {path: data}
train: {epochs: 1}
evaluate: {baselines: [], importance: false}
nightly: {start: warm, min_window_rows: 10, tolerance: 1}
YAML
python -m gigabatch.features.synthetic.trivago --rows 20000 --out data
gigabatch train --config night.yaml
python -m gigabatch.features.synthetic.trivago --rows 30000 --out data
code=0
gigabatch nightly --config night.yaml || code=$?
case $code in 0 | 10) ;; *) exit "$code" ;; esac
