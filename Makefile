# Every target describes itself: `make help`.
# PYTHON=... uses that interpreter as it is and installs nothing (the GPU box may be offline).

CONFIG ?= conf/flights.yaml
ARGS ?=
ROWS ?= 1000000
OUT ?= data/trivago
MODELS ?= tabular,lr,fm,deepfm,dcn
USERS ?= 6000
FORMAT ?= ml-1m
SECONDS ?= 60
PYTHON_VERSION ?= 3.12
BOX ?= tools/gpu_box.txt
BOX_TESTS ?= tests/loaders/order tests/loaders/batches tests/models/layers tests/models/optimizers
TARGET ?= csv parquet preprocessor statistics vocabulary workflow packed fastai nvtabular expression steps
NPROC ?= 1
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
GROUPS_OF ?= 2
VENV := .venv
SHELL := /bin/bash

ifdef PYTHON
READY :=
else
PYTHON := $(VENV)/bin/python
READY := $(VENV)/.ready
endif

GPU_PYTHON := $(if $(filter $(VENV)/bin/python,$(PYTHON)),python3,$(PYTHON))

.DEFAULT_GOAL := help
.PHONY: help setup plan tune profile advise compare features train codistill evaluate score embed serve export nightly runs promote rollback test test-thorough \
        docs test-cudf-api test-gpu-box fuzz lint check-pins bench bench-env quality-env gpu-pack gpu-run gpu-check data-trivago \
        data-movielens gc clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 18
	@echo
	@echo "CONFIG=conf/NAME.yaml picks the run (now $(CONFIG)); ARGS=\"train.epochs=3 seed=7\" overrides settings."

setup: $(READY)  ## make .venv with everything that the other targets need, and compile the loops for this processor

$(VENV)/.ready: pyproject.toml constraints.txt
	@python=python3; test ! -x $(VENV)/bin/python || python=$(VENV)/bin/python; \
	    $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$$python is not Python 3.11 or later." \
	    "Make the environment by one that is, and again: rm -rf $(VENV); python3.12 -m venv $(VENV); make setup" >&2; exit 2; }
	test -x $(VENV)/bin/python || python3 -m venv $(VENV)
	@# PyPI's torch is the CUDA build and brings gigabytes; it serves as well where the other is out of reach.
	$(VENV)/bin/python -m pip install --quiet --retries 2 --no-deps --constraint constraints.txt \
	    --extra-index-url $(TORCH_INDEX) torch
	$(VENV)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[data,dev]'
	$(VENV)/bin/python -m gigabatch warm
	touch $@

plan: $(READY)  ## what a run will take (memory, time, disk) and whether that fits, before anything starts
	$(PYTHON) -m gigabatch plan --config $(CONFIG) $(ARGS)

tune: $(READY)  ## the fastest batch that is as good as the run's own, and its learning rate (ARGS="--seconds 600")
	$(PYTHON) -m gigabatch tune --config $(CONFIG) $(ARGS)

profile: $(READY)  ## where the time of a training step goes, beside the bytes and flops it needs
	$(PYTHON) -m gigabatch profile --config $(CONFIG) $(ARGS)

advise: $(READY)  ## which batch and how many devices still pay (ARGS="--bandwidth 25e9")
	$(PYTHON) -m gigabatch advise --config $(CONFIG) $(ARGS)

compare: $(READY)  ## models of the shelf under one budget, with intervals over seeds: make compare MODELS=tabular,fm,dcn
	$(PYTHON) -m gigabatch compare --config $(CONFIG) --models '$(MODELS)' $(ARGS)

features: $(READY)  ## raw files -> features as Parquet
	$(PYTHON) -m gigabatch features --config $(CONFIG) $(ARGS)

train: $(READY)  ## raw files -> features -> tensors -> a trained, evaluated model and its report (NPROC=4: on four ranks)
	$(PYTHON) $(if $(filter-out 1,$(NPROC)),-m torch.distributed.run --standalone --nproc-per-node $(NPROC)) -m gigabatch train --config $(CONFIG) $(ARGS)

codistill: $(READY)  ## GROUPS_OF=2 trainings at once that learn from each other's predictions (docs/parallel.md)
	$(PYTHON) -m gigabatch features --config $(CONFIG) $(ARGS)
	@for group in $$(seq 0 $$(($(GROUPS_OF) - 1))); do \
	  $(PYTHON) -m gigabatch train --config $(CONFIG) $(ARGS) \
	    train.codistill.groups=$(GROUPS_OF) train.codistill.group=$$group & started="$$started $$!"; \
	done; failed=0; for one in $$started; do wait $$one || failed=$$?; done; exit $$failed

evaluate: $(READY)  ## evaluate the current model again; summary and report go beside its own
	$(PYTHON) -m gigabatch evaluate --config $(CONFIG) $(ARGS)

score: $(READY)  ## predictions of the current model (trivago: the challenge's submission file)
	$(PYTHON) -m gigabatch score --config $(CONFIG) $(ARGS)

embed: $(READY)  ## store the vectors of the current two-tower model's users and items
	$(PYTHON) -m gigabatch embed --config $(CONFIG) $(ARGS)

serve: $(READY)  ## answer /rank, /recommend and /score over HTTP with the current model; a promoted one is swapped in
	$(PYTHON) -m gigabatch serve --config $(CONFIG) $(ARGS)

export: $(READY)  ## the current model for other runtimes: make export ARGS="--formats onnx_rows,torch --out exported"
	$(PYTHON) -m gigabatch export --config $(CONFIG) $(ARGS)

nightly: $(READY)  ## new raw files -> a model -> compared with the current one -> promoted or kept (schedule the command)
	$(PYTHON) -m gigabatch nightly --config $(CONFIG) $(ARGS)

runs: $(READY)  ## every run with date, state, metrics and the period of its data
	$(PYTHON) -m gigabatch runs --config $(CONFIG) $(ARGS)

promote: $(READY)  ## make a run current by hand: make promote RUN=ID, as make runs lists it
	test -n '$(RUN)' || { echo 'make promote RUN=ID' >&2; exit 2; }
	$(PYTHON) -m gigabatch promote '$(RUN)' --config $(CONFIG) $(ARGS)

rollback: $(READY)  ## make the model before the current one current again, and block the one that was
	$(PYTHON) -m gigabatch rollback --config $(CONFIG) $(ARGS)

test: $(READY)  ## the test suite, on CPU, in as many processes as there are cores
	$(PYTHON) -m pytest -n auto --dist loadfile --no-loadscope-reorder $(ARGS)

test-thorough: $(READY)  ## the same with every example of the property tests, drawn anew, and the notebooks on all data
	GIGABATCH_THOROUGH=1 $(PYTHON) -m pytest -n auto --dist loadfile --no-loadscope-reorder $(ARGS)

fuzz: $(READY)  ## made-up bytes into every reader and loader of saved states: make fuzz SECONDS=60 TARGET="csv steps"
	$(PYTHON) -c 'import atheris' 2> /dev/null || \
	    $(VENV)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[fuzz]'
	for target in $(TARGET); do $(PYTHON) tests/fuzz/run.py $$target $(SECONDS) || exit 1; done

lint: $(READY)  ## ruff and mypy
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy

check-pins: $(READY)  ## whether the pins of constraints.txt allow each other, as PyPI says
	$(PYTHON) tools/check_pins.py

docs: $(READY)  ## the documentation as HTML, in docs/_build/html; warnings and dead links are errors
	$(PYTHON) -c 'import furo, myst_parser, sphinx' 2> /dev/null || \
	    $(VENV)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	$(PYTHON) -m sphinx --builder html --fail-on-warning --quiet --jobs auto docs docs/_build/html

test-cudf-api: .venv-cudf/.ready  ## every cuDF call of the operators against cuDF's real classes, no GPU needed (installs 3.8 GB)
	.venv-cudf/bin/python -m pytest -n auto --dist loadfile tests/cudf_api $(ARGS)

.venv-cudf/.ready: pyproject.toml constraints.txt
	test -x .venv-cudf/bin/python || python3 -m venv .venv-cudf
	.venv-cudf/bin/python -m pip install --quiet --constraint constraints.txt \
	    --editable '.[data,dev]' cudf-cu13==26.10.* dask-cudf-cu13==26.10.* dask-cuda==26.10.*
	touch $@

test-gpu-box: .venv-box/.ready  ## what `make gpu-check` will meet on the offline box, here: its versions, its lack of packages (3 GB)
	.venv-box/bin/python -m pytest -m gpu --collect-only -qq
	.venv-box/bin/python tests/tools/helps.py > .venv-box/helps.json
	OMP_NUM_THREADS=1 .venv-box/bin/python -m pytest --box -q $(BOX_TESTS) $(ARGS)

.venv-box/.ready: Makefile
	for python in python3.12 $(HOME)/.pyenv/versions/3.12*/bin/python python3; do \
	    "$$python" -c 'import ensurepip, venv' 2> /dev/null && break; done && "$$python" -m venv .venv-box
	.venv-box/bin/python -m pip install --quiet torch==2.11.0 triton==3.6.0 'numpy==2.5.2; python_version >= "3.12"' \
	    numpy 'pandas>=3.0' 'pyarrow>=21' 'numba>=0.61' 'pytest>=8.3'
	touch $@

bench-env:  ## environments of the benchmarks' peers, in .venv-bench (pandas, Polars, scikit-learn, fastai, FBGEMM)
	test -x .venv-bench/bin/python || python3 -m venv .venv-bench
	.venv-bench/bin/python -m pip install --quiet --requirement benchmarks/peers.txt
	test -x .venv-bench/fastai/bin/python || python3 -m venv .venv-bench/fastai
	.venv-bench/fastai/bin/python -m pip install --quiet --requirement benchmarks/peers-fastai.txt
	.venv-bench/fastai/bin/python -m pip install --quiet --no-deps fastai==2.8.* fastcore 'fastprogress<1.1' \
	    'plum-dispatch<2.10' fasttransform fastdownload cloudpickle
	test -d .venv-bench/fbgemm || .venv-bench/bin/python -m pip install --quiet --no-deps \
	    --target .venv-bench/fbgemm fbgemm-gpu-cpu==1.8.0

quality-env:  ## environment of the peers of benchmarks.quality, in .venv-quality (LightGBM, CatBoost, pytabkit)
	test -x .venv-quality/bin/python || python3 -m venv .venv-quality
	.venv-quality/bin/python -m pip install --quiet --requirement benchmarks/peers-quality.txt

bench: $(READY)  ## the benchmarks; each prints a table and ends in one JSON line
	$(PYTHON) -m benchmarks.trivago_quality $(ARGS)
	$(PYTHON) -m benchmarks.first_hour $(ARGS)
	$(PYTHON) -m benchmarks.online $(ARGS)
	$(PYTHON) -m benchmarks.large $(ARGS)
	$(PYTHON) -m benchmarks.step $(ARGS)
	$(PYTHON) -m benchmarks.embedding $(ARGS)
	$(PYTHON) -m benchmarks.lists $(ARGS)
	$(PYTHON) -m benchmarks.batch_scaling $(ARGS)
	$(PYTHON) -m benchmarks.nightly $(ARGS)
	$(PYTHON) -m benchmarks.defaults $(ARGS)
	$(PYTHON) -m benchmarks.ncf $(ARGS)
	$(PYTHON) -m benchmarks.retrieval $(ARGS)
	$(PYTHON) -m benchmarks.communication $(ARGS)
	$(PYTHON) -m benchmarks.ranks_equal $(ARGS)
	$(PYTHON) -m benchmarks.sharded_tables $(ARGS)
	$(PYTHON) -m benchmarks.codistillation $(ARGS)
	$(PYTHON) -m benchmarks.advise $(ARGS)
	$(PYTHON) -m benchmarks.serve $(ARGS)
	test ! -d .venv-quality || $(PYTHON) -m benchmarks.quality $(ARGS)
	test ! -d .venv-bench || $(PYTHON) -m benchmarks.features $(ARGS)
	test ! -d .venv-bench || $(PYTHON) -m benchmarks.preprocess $(ARGS)
	test ! -d .venv-bench || $(PYTHON) -m benchmarks.end_to_end $(ARGS)
	test ! -d .venv-bench || $(PYTHON) -m benchmarks.loader $(ARGS)

gpu-pack: $(READY)  ## wheels that an offline GPU box lacks, in parts below 55 MB: make gpu-pack PYTHON_VERSION=3.12
	$(PYTHON) -m tools.gpu_pack --python $(PYTHON_VERSION) --box $(BOX) $(ARGS)

gpu-run:  ## on a GPU box, offline: every check in numbered steps, and a page to read (ARGS="--steps 0-2 --out DIR")
	$(GPU_PYTHON) tools/gpu_run.py $(ARGS)

gpu-check:  ## on a GPU box: tests marked gpu and the benchmarks, with what is installed (make gpu-check PYTHON=python3)
	$(GPU_PYTHON) tools/gpu_run.py --here $(ARGS)

data-trivago: $(READY)  ## a synthetic log in the RecSys Challenge 2019 format: make data-trivago ROWS=1000000
	$(PYTHON) -m gigabatch.features.synthetic.trivago --rows $(ROWS) --out $(OUT) $(ARGS)

data-movielens: $(READY)  ## synthetic ratings in a MovieLens format: make data-movielens USERS=6000 FORMAT=ml-1m
	$(PYTHON) -m gigabatch.features.synthetic.movielens --format $(FORMAT) --users $(USERS) --out data/movielens $(ARGS)

gc: $(READY)  ## remove all but the newest artifacts: make gc ARGS="--keep 3"
	$(PYTHON) -m gigabatch gc --config $(CONFIG) $(ARGS)

clean:  ## remove environments and caches; artifacts and runs stay
	rm -rf .venv .venv-cudf .venv-box .venv-bench .venv-quality docs/_build docs/reference build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
