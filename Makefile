# Verbs for people and for CI.  `make demo` and `make test` need nothing set up before.
MAKEFLAGS += --warn-undefined-variables

PYTHON ?=
BACKEND ?= leaderserver
KEEP ?=
REPORT ?=
SOAK_SECONDS ?=
SEED ?=
QUESTIONS ?=
WORKERS ?= 4
BASE ?= HEAD
SEEDS ?= 1000
HYPOTHESIS_SEED ?= $(shell date +%s)

python := .venv/bin/python
pytest := $(python) -m pytest -p no:cacheprovider
checked := $(wildcard nameservice zmqtransport retrieval election leaderserver \
	haservices rescaling queryablestate sparkpipeline pyspark_lodestar \
	pyspark_lodestar_log lodestar \
	tests examples benchmarks scripts)

# Tests of files that decide, by path: what is not collected takes no time.
pure := $(addprefix tests/,election retrieval rescaling nameservice traces test_rules.py \
	test_layering.py test_mutations.py $(addprefix queryablestate/,schema wire control node/core))
stateful = $(shell find tests -name 'test_*stateful.py')
changed = $(shell git diff --name-only --diff-filter=d $(BASE) -- '*.py'; \
	git ls-files --others --exclude-standard -- '*.py')

# The JVMs of the tests live too briefly for an optimizing compiler, and their classes are
# those of the lock: to verify each again costs a Spark driver a seventh of its start.
# Hadoop starts a process, chmod, for each file that it makes: without a helper between
# them Spark's tests take a twelfth less.
brief_java_options := -XX:TieredStopAtLevel=1 -XX:+UseSerialGC \
	-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote \
	-Xlog:disable -Xlog:all=error:stderr -Djdk.lang.Process.launchMechanism=VFORK

# Read as one file and not from 200, they cost it another third, and a ZooKeeper as much.
# JVMs that are neither, or find no such file, go on without.
spark_archive := .venv/spark.jsa
zookeeper_archive := .venv/zookeeper.jsa
java_options := $(brief_java_options) "-XX:SharedArchiveFile=$(CURDIR)/$(spark_archive)"
zookeeper_options := '-XX:SharedArchiveFile=$(CURDIR)/$(zookeeper_archive)'

# Where this is set, each of the hundreds of processes of the tests compiles everything.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo style types check-fast classes asserts test nightly simulate drills traces twins \
	bench bench-tiny bench-peers docs coverage wheel compat check lock clean

# Make .venv from requirements.lock, and see that there is a Java.  PYTHON=… picks one.
setup:
	@scripts/require_java
	@scripts/setup $(PYTHON)

# A year of flights through Spark, a leader killed midway.
# BACKEND=leaderserver, zookeeper or embedded.
demo: setup
	$(python) -m examples.flights --backend $(BACKEND) $(if $(KEEP),--keep)

# Lint, and see that the formatter would change nothing and that the twins agree.
style: setup
	$(python) -m scripts.generate_sync --check
	$(python) -m ruff check $(checked)
	$(python) -m ruff format --check $(checked)

# Strict types, in the tests too.
types: setup
	$(python) -m mypy $(checked)

# While working, within a minute: style, types of what has changed since BASE, and tests
# of what decides and never waits.
check-fast: export LODESTAR_HYPOTHESIS_PROFILE := fast
check-fast: style
	$(if $(changed),$(python) -m mypy $(changed))
	$(pytest) -q -n $(WORKERS) --dist loadfile \
		-m "not shells and not spark and not drill and not nightly" $(pure)

# Archive the classes of Spark and ZooKeeper for the tests, unless that is done.
classes: export JDK_JAVA_OPTIONS := $(brief_java_options)
classes: setup
	@scripts/archive_classes $(spark_archive) $(zookeeper_archive)

# Have pytest rewrite the asserts of all tests.  Where that is not done, each of the
# workers does it by itself.  What is wrong with a test, `make test` tells.
asserts: setup
	@$(pytest) --collect-only --quiet tests | tail -n 1

# All tests but the drills, those of the night and those of benchmarks.  Most of them wait, so WORKERS=4 run at once.
test: export JDK_JAVA_OPTIONS ?= $(java_options)
test: export SERVER_JVMFLAGS ?= $(zookeeper_options)
test: setup classes
	$(pytest) -n $(WORKERS) --dist loadfile -m "not drill and not nightly and not tiny" tests

# Repetitions of what `make test` proves: all seeds, rounds, backends and demos, with more
# examples of each property and more histories; then the drills.
nightly: export JDK_JAVA_OPTIONS ?= $(java_options)
nightly: export SERVER_JVMFLAGS ?= $(zookeeper_options)
nightly: setup classes
	$(pytest) -n $(WORKERS) --dist loadfile --timeout 1800 -m nightly tests
	LODESTAR_HYPOTHESIS_PROFILE=night $(pytest) -n $(WORKERS) --dist loadfile \
		--timeout 1800 -m hypothesis tests
	$(MAKE) drills

# Seeded faults against the shipped cores; new examples for the state machines.
# SEEDS=n for that many, SEED=s to replay one of each.
simulate: setup
	$(python) -m tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS))
	$(python) -m tests.zookeeper_simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS))
	$(python) -m tests.zookeeper_simulation --store $(if $(SEED),--seed $(SEED),--seeds $(SEEDS))
	$(python) -m tests.state_simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS) --every-kind)
	$(if $(SEED),,LODESTAR_HYPOTHESIS_PROFILE=random $(pytest) \
		--hypothesis-seed=$(HYPOTHESIS_SEED) $(stateful))

# All drills with real processes and real faults; REPORT=FILE also writes the figures,
# SOAK_SECONDS=N makes the soak shorter.
drills: setup
	$(pytest) --timeout 1800 tests/drills $(if $(REPORT),--report $(REPORT)) \
		$(if $(SOAK_SECONDS),--soak-seconds $(SOAK_SECONDS))

# Write the golden traces anew; commit a changed one only if you can say why.
traces: setup
	$(pytest) tests/traces --rewrite-traces

# Write the synchronous clients and their tests anew, from the asynchronous ones.
twins: setup
	$(python) -m scripts.generate_sync

# Measure; results go to benchmarks/results.
bench: setup
	$(python) -m benchmarks

# See that each benchmark works, in tiny sizes.
bench-tiny: export JDK_JAVA_OPTIONS ?= $(java_options)
bench-tiny: export SERVER_JVMFLAGS ?= $(zookeeper_options)
bench-tiny: setup classes
	$(pytest) -n 2 --dist loadfile -m "tiny and not nightly" tests/benchmarks

# Measure beside ZooKeeper, etcd, Redis, Flink and Spark; what is missing is installed if
# that is possible, and reported if not.  QUESTIONS="reads …" for some.
bench-peers: setup
	$(python) -m benchmarks.peers $(QUESTIONS)

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

# Build the wheel into dist, and follow README and tutorials with it in an empty
# environment.
wheel: setup
	scripts/check_wheel

# Run the tests that fit with the oldest release of each dependency that we allow.
compat: export JDK_JAVA_OPTIONS ?= $(java_options)
compat: setup
	scripts/check_compat

# What CI runs.  The second processor has nothing to do while types are checked.
check: style
	$(MAKE) --jobs=2 types classes asserts
	$(MAKE) bench-tiny test wheel

# Resolve requirements.lock anew.  Only PIP_INDEX_URL is heeded: an extra index or a
# directory of wheels could slip in hashes that nobody else can find.
lock: setup
	env -u PIP_EXTRA_INDEX_URL -u PIP_FIND_LINKS PIP_CONFIG_FILE=/dev/null \
		$(python) -m piptools compile --no-config --quiet --upgrade --extra spark --extra metrics --extra http --extra sql \
		--generate-hashes --allow-unsafe --strip-extras --no-header \
		--no-emit-options --no-emit-index-url --no-emit-find-links \
		--no-emit-trusted-host --output-file requirements.lock \
		pyproject.toml requirements.in

# Remove what the other verbs leave behind, but not .venv.
clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage* \
		spark-warehouse artifacts
	find $(checked) -name __pycache__ -type d -prune -exec rm -rf {} +
