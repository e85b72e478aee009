# `make check` before a commit; `make test` is all that CI runs.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := check
MAKEFLAGS += --no-print-directory

VENV := .venv
PYTHON := $(VENV)/bin/python
PYTEST := $(PYTHON) -m pytest

PHASES := check integration packaging booted

.PHONY: fuzz check count mutants test integration packaging booted bed siege arm64 gpu demo deb release bench generate flags lock audit venv clean

# mypy runs beside the tests; what it finds is shown after them. Each worker loads the tests, which is fast once compiled.
# Six workers also on two cores: two thirds of the tests' time are spent waiting.
check: export PYTHONDONTWRITEBYTECODE :=
check: venv  ## format, lint, layers, words, types, unit tests
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/ruff check
	$(VENV)/bin/lint-imports
	$(PYTHON) -m tests.words
	@mkdir -p build; $(VENV)/bin/mypy >build/mypy.txt 2>&1 & types=$$!; trap "kill $$types" INT TERM; \
	failed=0; echo "mypy & $(PYTEST) -n 6 tests/unit tests/machines"; \
	$(PYTEST) -n 6 --dist worksteal tests/unit tests/machines || failed=$$?; \
	wait $$types || { failed=$$?; cat build/mypy.txt >&2; }; exit $$failed

# pytest's summary is the last line of each phase, so a phase's time is said when the next begins, or all have passed.
test: venv  ## all that CI runs (as root)
	@took=; for phase in $(PHASES); do \
	  echo "== $$phase$$took"; start=$$SECONDS; \
	  $(MAKE) $$phase; \
	  took=" ($$phase took $$((SECONDS - start)) s)"; \
	done; echo "== passed in $$SECONDS s$$took"

check integration packaging booted bed: PYTEST += --durations=20

# Three workers, as most of these tests wait too; what judges the whole machine runs after the others.
integration: venv  ## this machine's kernel, real docker
	packaging/tools.sh
	$(PYTEST) -n 3 --dist worksteal tests/integration -m "not whole and not alone"
	$(PYTEST) tests/integration -m "alone and not whole"

packaging: venv  ## the .deb: content, reproducible build; the page in a browser, /metrics in Prometheus
	packaging/tools.sh chromium shellcheck
	packaging/unpack.sh prometheus
	$(PYTEST) -n 3 --dist loadfile tests/packaging

# Two beds side by side, each with nodes and a network of its own: a node waits longer than it works.
booted bed: BEDS := $(PYTEST) -n 2 --dist loadfile tests/bed

booted: venv  ## booted nodes: real systemd, real docker, the .deb, real vLLM, and some faults of each kind
	packaging/tools.sh
	$(BEDS) -m "not whole and not alone"
	$(PYTEST) tests/bed -m "alone and not whole"

bed: venv  ## the same with the whole fault table (build/faults.json, build/faults.md), and machines with a kernel of their own
	packaging/tools.sh
	$(BEDS) -m "not alone"
	$(PYTEST) tests/bed -m alone
	$(PYTEST) tests/integration -m whole

siege: deb  ## COUNT faults drawn by SEED, or those of LIST, on NODES nodes (2), VLLM=1: with vLLM, PLANT=NAME: with a fault to find; a violation is in build/siege (as root)
	$(PYTHON) -m tests.siege $(or $(LIST),$(or $(SEED),1) $(COUNT)) $(MINUTES:%=--minutes %) $(NODES:%=--nodes %) $(if $(VLLM),--vllm) $(PLANT:%=--plant %)

arm64: venv  ## the arm64 .deb from its installation to its purge, on an emulated machine of arm64 (as root)
	packaging/tools.sh
	PYTHONPATH=packaging $(PYTHON) -m deb arm64
	$(PYTHON) -m tests.arm64

gpu: deb  ## bundles for the proof on a machine with a GPU of compute capability CAPABILITY, 9.0, or two with NODES=2 (as root)
	$(PYTHON) -m tests.gpu bundle $(CAPABILITY)
	@echo "copy the checkout there with build/gpu; there, as root: python3 -m tests.gpu $(if $(filter 2,$(NODES)),pair,all)"

demo: deb  ## one node: install the .deb, start the unit, show a completion
	$(PYTHON) -m tests.bed demo

fuzz: venv  ## a million hostile inputs for the parsers of text from outside; takes half an hour
	nice -n 19 $(PYTHON) -m tests.fuzz 1000000 $(or $(SEED),1)

count: venv  ## figures of src/sparkd; BASE=REV compares with a commit, JSON=1 also writes build/count.json
	$(PYTHON) -m tests.count $(if $(BASE),--base $(BASE)) $(if $(JSON),--json)

mutants: venv  ## COUNT small faults a package, drawn by SEED: which of them the unit tests notice; PACKAGE=NAME (as root)
	nice -n 19 $(PYTHON) -m tests.mutants $(or $(SEED),1) $(or $(COUNT),10) $(PACKAGE)

deb: venv  ## dist/sparkd_VERSION_{amd64,arm64}.deb
	packaging/tools.sh
	PYTHONPATH=packaging $(PYTHON) -m deb

release: venv  ## dist/release, signed by KEY, to be served at URL (UNSIGNED=1: neither); VERSION= must be its tag, EARLIER= has old .debs
	packaging/tools.sh
	PYTHONPATH=packaging $(PYTHON) -m release $(if $(KEY),--key '$(KEY)') $(if $(URL),--url '$(URL)') $(if $(UNSIGNED),--unsigned) \
	  $(if $(VERSION),--version '$(VERSION)') $(if $(EARLIER),--earlier '$(EARLIER)')

bench: deb  ## figures: build/bench.json and a table; BASE=REV measures that commit first and says what became worse (as root)
	$(PYTHON) -m tests.bench $(if $(BASE),--base $(BASE))

generate: venv  ## files made from the source: config/sparkd.toml, and the marked parts of manuals in docs
	PYTHONPATH=packaging $(PYTHON) -m generate

flags: venv  ## src/sparkd/data/vllm-flags.json and vllm-releases.json, from the parsers of vLLM's releases (as root)
	$(PYTHON) -m tests.bed flags

lock: venv  ## requirements.lock from pyproject.toml; what it pins stays unless pyproject.toml asks for more
	test -x build/uv/bin/pip || $(PYTHON) -m venv build/uv
	build/uv/bin/pip install -q --no-deps --require-hashes -r packaging/uv.txt
	build/uv/bin/uv pip compile -q pyproject.toml --extra dev --universal --python-version 3.11 \
	  --generate-hashes --no-header --no-emit-index-url --no-emit-find-links -o requirements.lock

audit: venv  ## advisories on the pins of requirements.lock, and on the Rust crates in its wheels (network: api.osv.dev)
	PYTHONPATH=packaging $(PYTHON) -m audit

venv:
	@packaging/venv.sh $(VENV)

clean:
	rm -rf build dist
