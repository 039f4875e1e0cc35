# Everything a person or CI runs. `make help` lists it.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Processes that run tests: `auto` is one per core.
WORKERS ?= auto
PYTEST := $(BIN)/python -m pytest
# In order of collection: conftest.py puts the long files first.
PARALLEL := --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
# Tests that need neither root nor the data of workloads, nor Ray or peers.
ANYWHERE := not workload and not cluster and not docker and not ray and not peers and not release and not monitoring and not matrix
# Their folders are not even imported.
ELSEWHERE := $(addprefix --ignore=tests/,cluster docker matrix monitoring peers ray release workloads)
DURATIONS := build/durations
RUNS ?= 5
# Thousands of test processes would each compile what they import.
unexport PYTHONDONTWRITEBYTECODE
# One worker has a cluster with a node, the other API servers without nodes.
CLUSTERS := --numprocesses 2 --dist loadgroup --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help install demo test test-pythons lint format types contracts unit test-slow test-load release durations test-workloads test-device test-endurance test-ray test-peers test-matrix test-docker test-release test-monitoring test-cluster test-gang test-kubeflow test-kueue test-helm test-airgap cluster-build cluster-up cluster-down docs bench fuzz golden fixtures pod-schema clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

install: $(STAMP) ## Make .venv with everything pinned by constraints.txt

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; ok = (3, 10) <= sys.version_info < (3, 13); sys.exit(0 if ok else f"Python 3.10 to 3.12 is needed, found {sys.version.split()[0]}; try make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
	VIRTUAL_ENV=$(abspath $(VENV)) $(BIN)/uv pip install --quiet --constraint constraints.txt --editable '.[dev,docs]'
	@# uv writes no bytecode: each process would compile MindSpore's 2,000 modules where PYTHONDONTWRITEBYTECODE is set.
	cd $(VENV)/lib/python*/site-packages && $(abspath $(BIN))/python -W ignore -m compileall -q -j 0 mindspore kfp numpy scipy
	@touch $(STAMP)

demo: $(STAMP) ## Train, export, gate, serve and query LeNet on digits, on this machine
	$(BIN)/kfp-mindspore demo

test: $(STAMP) ## What a contributor waits for: lint, types, contracts, unit tests, one lifecycle, one notebook
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory --jobs 2 types contracts
	@$(MAKE) --no-print-directory unit

test-slow: $(STAMP) ## The tests marked slow: faults, load, fuzz, the other lifecycles and notebooks, wheel, documentation
	$(PYTEST) $(PARALLEL) --durations 20 --junit-xml $(DURATIONS)/test-slow.xml $(ELSEWHERE) -m 'slow and $(ANYWHERE)'

test-load: $(STAMP) ## The tests of `make test`, RUNS times beside 8 busy processes
	@.ci/test-load $(RUNS)

release: $(STAMP) ## Write dist/ of the commit VERSION: wheel, sources, versions, bill of materials, checksums, images over BASE, signed by KEY
	$(BIN)/python -m release "$(VERSION)" $(if $(KEY),--key "$(KEY)") $(if $(BASE),--base "$(BASE)")
	$(BIN)/uv tool run --from 'twine>=6,<7' twine check --strict dist/*.whl dist/*.tar.gz

durations: $(STAMP) ## Write the durations of the last make test and make test-slow to CONTRIBUTING.md, list slow tests and long files
	$(BIN)/python -m tests.support.durations $(DURATIONS)

test-pythons: ## `make test` on each Python 3.10, 3.11 and 3.12 of this machine, in .venv-3.10 and so on
	@.ci/test-pythons

lint: $(STAMP) ## Format and lint check
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

format: $(STAMP) ## Format and fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: $(STAMP) ## Strict type check
	$(BIN)/mypy

contracts: $(STAMP) ## Import contracts
	$(BIN)/lint-imports

unit: $(STAMP) ## The tests of `make test` alone
	$(PYTEST) $(PARALLEL) --junit-xml $(DURATIONS)/test.xml $(ELSEWHERE) -m 'not slow and $(ANYWHERE)'

test-workloads: $(STAMP) ## The bundled workloads: each trained, compared with its baseline and served; SHORT=1: those of minutes are not
	$(PYTEST) $(PARALLEL) --durations 10 -m 'workload$(if $(SHORT), and not long)' tests/workloads

test-endurance: $(STAMP) ## Training jobs killed at each phase, and 20 times at random: 20 minutes
	KFP_MINDSPORE_ENDURANCE=1 $(PYTEST) tests/faults/test_gang_faults.py

test-ray: $(STAMP) ## MindSpore on Ray: one Ray on this machine for all tests; SHORT=1: without those of a minute
	RAY_worker_niceness=0 RAY_memory_monitor_refresh_ms=0 $(PYTEST) --durations 10 -m 'ray$(if $(SHORT), and not long)' $(if $(SHORT),,tests/local/test_notebook.py) components/training/ray_job tests/ray

test-device: $(STAMP) ## On a GPU or NPU: kernels, training, export, serving, speed, as JSON; at most 8 minutes; skipped without one
	$(BIN)/python -m tests.device --report build/device.json

PEERS := .venv-peers

$(PEERS)/.installed: tests/peers/requirements.txt $(STAMP)
	$(BIN)/uv venv --quiet --clear $(PEERS)
	$(BIN)/uv pip install --quiet --python $(PEERS)/bin/python --requirement $<
	@touch $@

test-peers: $(PEERS)/.installed ## Language models beside transformers, peft, llama.cpp, lm-eval and langchain, drift beside evidently, boxes beside pycocotools: 3 GB of packages
	KFP_MINDSPORE_PEERS=$(abspath $(PEERS))/bin/python $(PYTEST) --durations 10 -m peers tests/peers

test-matrix: $(STAMP) ## Other versions of Kubernetes, kfp and MindSpore, recorded on docs/support.md: KUBERNETES=1.35.0 one only; built first (Go; 3 GB a MindSpore)
	$(BIN)/python -m tests.cluster matrix $(KUBERNETES)
	$(BIN)/python -m tests.support.kfp_versions
	$(PYTEST) --durations 10 -m matrix tests/matrix

DOCKER_PACKAGES := busybox-static debootstrap docker.io docker-registry skopeo

test-docker: $(STAMP) ## Tests with a Docker daemon of their own (root; installs Debian's packages)
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && ! dpkg -s $(DOCKER_PACKAGES) >/dev/null 2>&1; then \
	  .ci/apt-install $(DOCKER_PACKAGES); fi
	$(PYTEST) -m docker --durations 10 tests/docker

test-release: $(STAMP) ## Images of a release judged by cosign, syft, skopeo and Docker (root; 20 minutes of builds the first time)
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && ! dpkg -s $(DOCKER_PACKAGES) >/dev/null 2>&1; then \
	  .ci/apt-install $(DOCKER_PACKAGES); fi
	$(PYTEST) -m release --durations 10 tests/release

test-monitoring: $(STAMP) ## Each panel's query and each alert by a real Prometheus (Go; installs Debian's package)
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && ! dpkg -s prometheus >/dev/null 2>&1; then .ci/apt-install prometheus; fi
	$(BIN)/python -m tests.cluster build --control-plane
	$(PYTEST) -m monitoring --durations 10 tests/monitoring

cluster-build: $(STAMP) ## Build Kubernetes and BuildKit for the tests into a cache: 16 minutes the first time
	$(BIN)/python -m tests.cluster build

test-cluster: cluster-build ## Tests on a real Kubernetes: our own, or with KFP_MINDSPORE_TEST_CLUSTER=current yours
	$(PYTEST) -m cluster --durations 20 $(if $(filter current,$(KFP_MINDSPORE_TEST_CLUSTER)),,$(CLUSTERS)) tests/cluster

test-gang: cluster-build ## Gang scheduling by Volcano and scheduler-plugins, built first (8 minutes the first time)
	$(BIN)/python -m tests.cluster build --gang
	KFP_MINDSPORE_TEST_GANG=1 $(PYTEST) -m cluster tests/cluster/scenarios/test_gang_scheduling.py tests/cluster/scenarios/test_job_kinds.py tests/cluster/scenarios/test_katib.py

KUBEFLOW_SDK := .venv-kubeflow-sdk

$(KUBEFLOW_SDK)/.installed: tests/cluster/kubeflow_sdk/requirements.txt $(STAMP)
	$(BIN)/uv venv --quiet --clear $(KUBEFLOW_SDK)
	$(BIN)/uv pip install --quiet --python $(KUBEFLOW_SDK)/bin/python --requirement $<
	@touch $@

test-kubeflow: cluster-build $(KUBEFLOW_SDK)/.installed ## KServe, the MPI operator, Kubeflow Trainer with its SDK, Katib, KubeRay and Kueue, built first (16 minutes the first time)
	$(BIN)/python -m tests.cluster build --kserve --trainers --katib --kuberay --kueue
	KFP_MINDSPORE_TEST_KUBEFLOW=1 KFP_MINDSPORE_KUBEFLOW_SDK=$(abspath $(KUBEFLOW_SDK))/bin/python $(PYTEST) -m cluster --durations 20 tests/cluster/scenarios/test_kubeflow_sdk.py tests/cluster/scenarios/test_kserve*.py tests/cluster/scenarios/test_tutorial.py tests/cluster/scenarios/test_job_kinds.py tests/cluster/scenarios/test_katib.py tests/cluster/scenarios/test_kuberay.py tests/cluster/scenarios/test_kueue.py

test-kueue: cluster-build ## Queues of Kueue for MSJobs, Jobs and TrainJobs, built first (8 minutes the first time)
	$(BIN)/python -m tests.cluster build --trainers --kueue
	KFP_MINDSPORE_TEST_KUBEFLOW=1 $(PYTEST) -m cluster --durations 20 tests/cluster/scenarios/test_kueue.py

test-helm: cluster-build ## The Helm chart by Helm on a node, and by kubeconform, built first (5 minutes the first time)
	$(BIN)/python -m tests.cluster build --helm
	KFP_MINDSPORE_TEST_HELM=1 $(PYTEST) -m cluster --durations 10 tests/cluster/test_chart*.py tests/cluster/scenarios/test_chart_life.py

test-airgap: $(STAMP) ## The cluster tutorial without internet: images of a release, wheels and a registry, built first (root; 15 minutes, 12 GB)
	$(BIN)/python -m tests.cluster build --kserve
	$(BIN)/python -m tests.cluster.release_images
	KFP_MINDSPORE_REQUIRE_CLUSTER=1 KFP_MINDSPORE_TEST_KUBEFLOW=1 KFP_MINDSPORE_TEST_AIRGAP=1 unshare --net \
	  sh -c 'ip link set lo up && exec $(PYTEST) -m cluster --durations 10 tests/cluster/scenarios/test_air_gap.py'

cluster-up: $(STAMP) ## Start a one-node Kubernetes that keeps running (root), and print its KUBECONFIG
	@$(BIN)/python -m tests.cluster up

cluster-down: $(STAMP) ## Stop it
	@$(BIN)/python -m tests.cluster down

golden: $(STAMP) ## Regenerate compiled YAML and component READMEs
	$(BIN)/python -m tests.golden.regenerate

fixtures: $(STAMP) ## Store what VERSION writes, once, for tests of later versions (needs make cluster-build)
	$(BIN)/python -m tests.fixtures "$(VERSION)"

pod-schema: $(STAMP) ## Regenerate the pod template's schema from the pinned Kubernetes release (needs Go)
	$(BIN)/python -m tests.golden.pod_schema

docs: $(STAMP) ## Build the documentation into site/
	$(BIN)/mkdocs build --strict --quiet

bench: $(STAMP) ## Run every benchmark and redraw docs/benchmarks.md
	$(BIN)/python benchmarks/redraw.py

fuzz: $(STAMP) ## 100,000 generated bodies, 30 s of overload and reloads against a real server; SEED=… repeats one
	$(BIN)/python -m tests.fuzz $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.fuzz $(if $(SEED),--seed $(SEED)) --scale 0.2 --workers=2
	FUZZ_EXAMPLES=1000 OVERLOAD_SECONDS=30 RELOADS=100 $(PYTEST) --timeout 1800 \
	  tests/fuzz tests/faults/test_serving_load.py tests/faults/test_serving_bundles.py tests/faults/test_serving_graphs.py

clean: ## Remove what make made
	rm -rf $(VENV) $(PEERS) $(KUBEFLOW_SDK) .venv-3.1* build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
