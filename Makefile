# The commands of the project. `make demo` and `make test` need nothing but Python 3.11 or newer;
# Java 17 and Maven let the tests use Apache Kafka itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SLIPS_DIR := tests/data/slips
SLIPS := $(wildcard $(SLIPS_DIR)/*.png $(SLIPS_DIR)/*.jp*g)
DOCUMENTS ?= $(SLIPS_DIR)
CALLED ?=
LINES ?=
ONLY ?=
PROTO_OUTPUTS := services/common/pb protos/schemas

.PHONY: setup demo bench test chaos fuzz lint types protos protos-check lock quantize-check clean

setup: $(STAMP)

$(STAMP): requirements.lock requirements-convert.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=/path/to/it")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements-convert.lock
	@# setuptools warns about every editable installation
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# The main job on real slips: through Kafka, with the text, where the time went, and pictures in out/demo.
demo: setup
	$(BIN)/ocrctl demo --out out/demo $(SLIPS)

# The pipeline beside its floor and its peers, and all studies, on DOCUMENTS, a folder of page images; CALLED is
# what the report calls them, LINES a folder of images of single lines. Some 20 minutes on two cores; QUICK=1 takes
# 3 and writes to out/. ONLY=memory,classes measures these parts anew and keeps the rest of the report.
bench: setup
	$(BIN)/python -m loadgen bench $(DOCUMENTS) --kafka local --called "$(CALLED)" \
	    $(if $(filter-out $(SLIPS_DIR),$(DOCUMENTS)),--mix $(SLIPS_DIR)) $(if $(LINES),--lines $(LINES)) $(if $(ONLY),--only $(ONLY)) $(if $(QUICK),--quick --out out/bench,--out docs)

test: setup
	$(BIN)/python -m pytest

# 10,000 documents in each way of delivery and 300 with real models, while services, predictors and brokers are
# killed, stopped and cut off; some 30 minutes. SEED=N repeats a run. Ends with an error when anything is lost.
chaos: setup
	$(BIN)/python -m tests.chaos --delivery at_least_once $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.chaos --delivery exactly_once $(if $(SEED),--seed $(SEED))
	$(BIN)/ocrctl models fetch ppocr-v6-small
	$(BIN)/python -m tests.chaos --real $(if $(SEED),--seed $(SEED))

# 20,000 damaged documents through decoding and parsing; some two minutes. What is found is kept in out/fuzz.
fuzz: setup
	$(BIN)/python -m tests.fuzz --count 20000 $(if $(SEED),--seed $(SEED))

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

# Regenerates everything that is derived from protos/ocr/v1/ocr.proto.
protos: setup
	PYTHON=$(BIN)/python sh protos/generate.sh

protos-check: protos
	@git diff --exit-code -- $(PROTO_OUTPUTS) || { echo "generated files differ: run make protos and commit"; exit 1; }

# Pins every dependency with hashes; run after a change of the dependencies in pyproject.toml.
lock: setup
	$(BIN)/pip-compile --quiet --upgrade --generate-hashes --allow-unsafe --strip-extras --no-header \
	    --no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
	    --extra paddle --extra openvino --extra local --extra dev \
	    --output-file requirements.lock pyproject.toml
	$(BIN)/pip-compile --quiet --upgrade --generate-hashes --allow-unsafe --strip-extras --no-header \
	    --no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
	    --constraint requirements.lock --extra quantize \
	    --output-file requirements-quantize.lock pyproject.toml

# Makes the INT8 models twice, in an environment of its own (NNCF is large), and compares: docs/int8.md.
QUANTIZE := build/quantize
quantize-check:
	@test -x $(QUANTIZE)/venv/bin/python || $(PYTHON) -m venv $(QUANTIZE)/venv
	$(QUANTIZE)/venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-quantize.lock
	rm -rf $(QUANTIZE)/first $(QUANTIZE)/second
	PYTHONPATH=. $(QUANTIZE)/venv/bin/python deploy/quantize_check.py $(QUANTIZE)

clean:
	rm -rf $(VENV) out build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
