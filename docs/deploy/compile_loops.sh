#!/bin/sh
# Compile the loops of features, packing and training into NUMBA_CACHE_DIR: a small run of every stage, thrown away.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python -m gigabatch.features.synthetic.trivago --rows 20000 --out data
cat >trivago.yaml <<'YAML'
name: compile
recipe: trivago
device: cpu
features: {path: data}
train: {epochs: 1}
evaluate: {baselines: []}
YAML
gigabatch train --config trivago.yaml
