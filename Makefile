# Verbs for people and for CI.  `make demo` and `make test` need nothing set up before.
MAKEFLAGS += --warn-undefined-variables

PYTHON ?=
BACKEND ?= leaderserver
REPORT ?=
SEED ?=
SEEDS ?= 1000
HYPOTHESIS_SEED ?= $(shell date +%s)

python := .venv/bin/python
pytest := $(python) -m pytest -p no:cacheprovider
checked := $(wildcard nameservice transport retrieval election leaderserver \
	haservices rescaling queryablestate sparkpipeline pyspark_lodestar \
	pyspark_lodestar_log lodestar \
	tests examples benchmarks scripts)

.PHONY: setup demo style types test simulate drills traces bench docs coverage \
	wheel check lock clean

# Make .venv from requirements.lock, and see that there is a Java.  PYTHON=… picks one.
setup:
	@scripts/require_java
	@scripts/setup $(PYTHON)

# A year of flights through Spark, a leader killed midway.
# BACKEND=leaderserver, zookeeper or embedded.
demo: setup
	$(python) -m examples.flights --backend $(BACKEND)

# Lint, and see that the formatter would change nothing.
style: setup
	$(python) -m ruff check $(checked)
	$(python) -m ruff format --check $(checked)

# Strict types, in the tests too.
types: setup
	$(python) -m mypy $(checked)

# All tests but the long drills.
test: setup
	$(pytest) -m "not drill" tests

# Seeded faults against the shipped cores; new examples for the state machines.
# SEEDS=n for that many, SEED=s to replay one of each.
simulate: setup
	$(python) -m tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS))
	$(python) -m tests.state_simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS))
	$(if $(SEED),,LODESTAR_HYPOTHESIS_PROFILE=random $(pytest) \
		--hypothesis-seed=$(HYPOTHESIS_SEED) $(wildcard tests/*/test_*stateful.py))

# All drills with real processes and real faults; REPORT=FILE also writes the figures.
drills: setup
	$(pytest) --timeout 1800 tests/drills $(if $(REPORT),--report $(REPORT))

# Write the golden traces anew; commit a changed one only if you can say why.
traces: setup
	$(pytest) tests/traces --rewrite-traces

# Measure; results go to benchmarks/results.
bench: setup
	$(python) -m benchmarks

# Check the documents: links lead somewhere, included code is the code.
docs: setup
	$(pytest) tests/test_documentation.py

# Every branch of the pure files is taken by a test without I/O.
coverage: setup
	$(python) -m coverage erase
	$(python) -m coverage run -m pytest -p no:cacheprovider \
		-m "not drill and not shells and not spark" tests
	$(python) -m coverage combine --quiet
	$(python) -m scripts.report_coverage

# Build the wheel and use it in an empty environment.
wheel: setup
	scripts/check_wheel

# What CI runs.
check: style types test wheel

# Resolve requirements.lock anew.  Only PIP_INDEX_URL is heeded: an extra index or a
# directory of wheels could slip in hashes that nobody else can find.
lock: setup
	env -u PIP_EXTRA_INDEX_URL -u PIP_FIND_LINKS PIP_CONFIG_FILE=/dev/null \
		$(python) -m piptools compile --no-config --quiet --upgrade --extra spark \
		--generate-hashes --allow-unsafe --strip-extras --no-header \
		--no-emit-options --no-emit-index-url --no-emit-find-links \
		--no-emit-trusted-host --output-file requirements.lock \
		pyproject.toml requirements.in

# Remove what the other verbs leave behind, but not .venv.
clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage* \
		spark-warehouse artifacts
	find $(checked) -name __pycache__ -type d -prune -exec rm -rf {} +
