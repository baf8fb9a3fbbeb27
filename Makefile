# Everything that a contributor runs. `make help` lists it.
SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
VERSION := $(shell sed -n 's/^version = //p' setup.cfg | head -1)
JAR := jvm-shim/target/ckpt-spark_2.13-$(VERSION).jar
MVN := tools/mvn.sh --batch-mode --quiet --file jvm-shim/pom.xml
SPARK_JARS := $(VENV)/lib/python3*/site-packages/pyspark/jars
FMT := com.spotify.fmt:fmt-maven-plugin
JAVA_SOURCES := $(shell find jvm-shim/src pyspark_checkpoint -name '*.java' -o -name '*.py' -o -path '*META-INF*' -type f)
PYTEST := $(PY) -m pytest -q
CLASSES := .tools/classes/spark.jsa
ECOSYSTEM := .tools/ecosystem
LANES_RUN = $(PY) -m tests.support.lanes --lanes $(LANES)
SOAKS := integration/filemanager integration/sink integration/coordinated integration/listener integration/plugin contract protocol+sink integration/cli+integration/docs ecosystem
SEEDS ?= 1000000
KILLS ?= 50
LANES ?= 2
ROUNDS ?= 20
BENCH ?=
BENCH_PARTS := side-by-side file-manager listener-cost purging coordinated two-drivers restore commit growth by-hand cold-start durability stores sink compaction peer-reads peer-growth

.PHONY: help setup check format test unit test-integration test-crash test-ecosystem test-spark test-spark-quick demo jar wheel simulate soak bench bench-quick bench-report bench-peers bench-part $(BENCH_PARTS:%=bench-%) bench-capture clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  %-20s %s\n", $$1, $$2}'

setup: $(STAMP) $(CLASSES) .tools/azurite/.installed .tools/chromium/path ## Everything that all tests and benchmarks need

$(STAMP): setup.cfg pyproject.toml tools/find_python.sh tools/precompile_pyspark.py
	@tools/find_python.sh --check-java
	@test -x $(PY) || "$$(tools/find_python.sh)" -m venv $(VENV)
	@tools/step.sh "Python packages into $(VENV) (PySpark is 450 MB; a minute or two)" \
	  $(PY) -m pip install --quiet --disable-pip-version-check --editable '.[dev]' --config-settings editable_mode=compat
	@$(PY) tools/precompile_pyspark.py
	@touch $@

$(CLASSES): tools/make_class_archive.py | $(STAMP)
	@tools/step.sh "an archive of Spark's classes, with which JVMs start in half of the time" \
	  $(PY) tools/make_class_archive.py $@

.tools/azurite/.installed: tools/install_azurite.sh | $(STAMP)
	@tools/step.sh "Azurite, the stand-in for Azure, into .tools" tools/install_azurite.sh
	@touch $@

.tools/chromium/path: tools/install_chromium.sh
	@tools/step.sh "a browser for the tests of pages" tools/install_chromium.sh

wheel: $(JAR) ## Build the wheel, with the jar in it, into dist
	@rm -rf build && mkdir -p pyspark_checkpoint/jars && cp $(JAR) pyspark_checkpoint/jars/
	$(PY) -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	@rm -rf build pyspark_checkpoint/jars

jar: $(JAR) ## Build the jar with the JVM part and the Python package

$(JAR): jvm-shim/pom.xml $(JAVA_SOURCES) | $(STAMP)
	@tools/step.sh "the jar (Maven fetches Spark's classes once)" \
	  $(MVN) package
	@touch $@

check: $(STAMP) ## Lint, types and import rules, format, and the Java tests of what is pure
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --config setup.cfg
	$(MVN) $(FMT):check test -DskipTests=false -Dspark.jars="$$(echo $$PWD/$(SPARK_JARS))"

format: $(STAMP) ## Write Python and Java in the one style that `check` asks for
	$(VENV)/bin/ruff format .
	$(MVN) $(FMT):format

unit: $(STAMP) ## The tests that need no other program: a minute or so
	@$(LANES_RUN) unit --lanes 4

# tests/support/suites.py says what each of these runs; two suites at once, each a process of its own.
test: $(STAMP) $(CLASSES) jar ## What to run first: every fast test, and each feature's main promise on real parts
	@rm -f .test-results/coverage*
	@$(LANES_RUN) test
	@$(VENV)/bin/coverage combine --quiet && echo "coverage of the fast tests: $$($(VENV)/bin/coverage report) %"

test-integration: setup jar ## Every other test with Spark or a server
	@$(LANES_RUN) integration

test-crash: setup jar ## Drivers killed, two drivers on one location, executors lost
	@$(LANES_RUN) crash

test-ecosystem: $(STAMP) jar ## Real Kafka, Delta, Iceberg and HDFS, on the Spark that has their connectors
	@tools/step.sh "Spark 4.1.1, its connectors, Kafka and HDFS into .tools/ecosystem" tools/setup_ecosystem.sh
	@tools/step.sh "an archive of its classes" $(ECOSYSTEM)/python/bin/python tools/make_class_archive.py $(ECOSYSTEM)/spark.jsa
	$(PYTEST) tests/ecosystem

test-spark: $(STAMP) ## Spark's own streaming suites under our file manager, and four of them under the plugin
	@$(PY) -m tests.spark_suites

test-spark-quick: $(STAMP) ## The same for what touches the file manager most, in four minutes
	@$(PY) -m tests.spark_suites --quick

simulate: $(STAMP) ## The commit protocol under SEEDS random schedules
	SEEDS=$(SEEDS) $(PYTEST) tests/protocol/simulation

soak: $(addprefix soak-,$(SOAKS)) ## The long runs: KILLS kills, ROUNDS rounds, large objects

soak-%: setup jar
	SOAK=1 KILLS=$(KILLS) ROUNDS=$(ROUNDS) $(PYTEST) -m soak --timeout 7200 $(addprefix tests/,$(subst +, ,$*)) || [ $$? = 5 ]

demo: $(STAMP) jar ## A streaming job that is killed and goes on, on a local directory
	$(PY) examples/demo.py

# BENCH has arguments for a benchmark that runs alone, such as BENCH="--delays 20 --ways stock,ours".
bench: setup jar ## Everything beside Spark's own but peers, in two hours; writes benchmarks/RESULTS.md and PEERS.md
	$(PY) -m benchmarks

bench-quick: setup jar ## The same with few batches and one case of peers, in half an hour
	$(PY) -m benchmarks --quick

bench-report: $(STAMP) ## Write the pages again from what was saved
	$(PY) -m benchmarks report

bench-peers: setup jar ## ckpt-sink beside Iceberg and Delta on Spark 4.1.1, case by case; goes on where it was ended
	$(PY) -m benchmarks peers $(BENCH)
	$(PY) -m benchmarks peer-reads $(BENCH)

$(BENCH_PARTS:%=bench-%): bench-%: setup jar
	$(PY) -m benchmarks $* $(BENCH)

bench-part: ## bench-PART runs one alone; without a name, this says which there are
	@$(PY) -m benchmarks parts

bench-capture: setup jar ## On local disk: a query with and without the listener; restores beside a plain download
	$(PY) -m benchmarks listener-cost --results .test-results/bench --store file --queries total --partitions 2 --delays 0 --rounds 4 --batches 12 $(BENCH)
	$(PY) -m benchmarks restore --results .test-results/bench --stores file,s3 --sizes 128 --rounds 9

clean: ## Remove what was built; the environment stays
	rm -rf build dist .test-results *.egg-info jvm-shim/target .pytest_cache .mypy_cache .ruff_cache .hypothesis
