# Needs only make and Python 3.11 or later. `make demo` and `make test` set everything up.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Every program that tests start would compile all of its modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test lint unit check cpus long mutants chaos bench fuzz docs clean

UNIT := not check and not fullscale and not long
# Everything that computes with floating-point numbers.
NUMERIC := $(addprefix tests/,data filters models federated secagg privacy runtime) \
  tests/test_evaluation.py tests/test_without_compiler.py

setup: $(READY)

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "PriviRec needs Python 3.11 or later: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[dev]'
	@touch $(READY)

demo: $(READY)
	$(BIN)/privirec demo

# What a newcomer runs: every idea once.
test: lint unit

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

unit: $(READY)
	$(BIN)/python -m pytest --numprocesses=auto --dist=loadfile -m "$(UNIT)"

# Breadth: full-size data, browsers, the site, the wheel, processes that are killed, other CPUs. One
# worker more than there are cores in CI: most of these tests wait for programs that they started.
check: $(READY) cpus
	$(BIN)/python -m pytest --numprocesses=3 --maxschedchunk=1 --durations=10 -m "(check or fullscale) and not long"

# The numeric tests as on a CPU without AVX-512, and as on one without fused multiplication.
cpus: $(READY)
	$(BIN)/python tests/cpus.py haswell $(BIN)/python -m pytest --numprocesses=auto --dist=loadfile -m "$(UNIT)" $(NUMERIC)
	$(BIN)/python tests/cpus.py sandybridge $(BIN)/python -m pytest --numprocesses=auto --dist=loadfile -m "$(UNIT)" $(NUMERIC)

# Depth: a thousand seeds of everything, every write that can fail, every guard.
long: $(READY) mutants
	$(BIN)/python -m pytest --numprocesses=auto --maxschedchunk=1 --durations=10 -m long
	PRIVIREC_EXAMPLES=100 $(BIN)/python -m pytest --numprocesses=auto --dist=loadfile -m "$(UNIT)"

# Breaks the code in one place after the other; a test must notice each time. See tests/mutants/.
mutants: $(READY)
	$(BIN)/python tests/mutants/run.py

# A hundred seeded runs under every kind of trouble, then real processes that are killed.
chaos: $(READY)
	PRIVIREC_CHAOS=100 $(BIN)/python -m pytest tests/network/test_chaos.py
	PRIVIREC_CHAOS=20 $(BIN)/python -m pytest tests/network/test_https_chaos.py
	PRIVIREC_CHAOS_PROCESSES=8 $(BIN)/python -m pytest tests/network/test_https_processes.py -k killed
	$(BIN)/python -m pytest tests/network/test_flower.py -k killed_client

bench: $(READY)
	$(BIN)/python benchmarks/speed.py

# Ten minutes of coverage-guided fuzzing of the messages of secure aggregation.
fuzz: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check atheris
	$(BIN)/python tests/secagg/fuzz_atheris.py -max_total_time=600

# The documentation site, to build/site; a broken link fails. A test builds it too.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
