# Each target says what it does; `make` alone lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
PY := .venv/bin/python
# what is compiled once is not compiled by each process that tests start
unexport PYTHONDONTWRITEBYTECODE
KEEP ?=
SOAK ?= 60
# of `make chaos`, at each point
TURNS ?= 20
COMPARE ?=
BENCH ?=
# of `make scale`: 500 and 15000 take 6 minutes
NODES ?= 5000
PODS ?= 150000
# what `make lint` is to do beside the linters
BESIDE ?=
OVERLAY ?= manifests/overlays/default
# processes of pytest; each starts a control plane of its own
PROCS ?= 2
PYTEST = $(PY) -m pytest -m "not bench" -n $(PROCS) --dist loadfile --no-loadscope-reorder

.PHONY: help setup chaos compare compare-autoscaling compare-server conformance demo demo-down test e2e e2e-argocd e2e-cluster e2e-guest bench evaluate lint lint-layers lint-style lint-types compiled-tests image image-packages sbom rights uninstall lock volumes gangs scale reproducible pin-base
help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | expand -t 12

setup: .venv/.installed ## install Python and system packages that are missing (1-2 min the first time)
	@./e2e/testbed/nodes/install-packages.sh

.venv/.installed: requirements.lock pyproject.toml
	@echo "setup: Python packages into .venv, pinned by requirements.lock (about 1 min)"
	@test -x $(PY) || python3 -m venv .venv
	@.venv/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@.venv/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: setup $(if $(filter cluster,$(MODE)),image-packages) ## run the main job: nodes, agents, operator, and a Job of 60 pods placed by measured capacity (KEEP=1 leaves it running, MODE=cluster runs ours from images)
	@KEEP=$(KEEP) $(PY) -m e2e.demo$(if $(filter cluster,$(MODE)),.cluster)

demo-down: ## end what KEEP=1 make demo has left running
	@$(PY) -m e2e.demo down

test: setup ## run every test this machine can run; says what it skips and why
	@$(PYTEST)

e2e: setup ## run only what needs an API server or nodes
	@$(PYTEST) e2e

e2e-argocd: setup ## Concerto in the hands of the real Argo CD on a real node (built once, 10 min; SOAK=600 soaks 10 minutes)
	@./e2e/testbed/nodes/install-packages.sh e2e/argocd/packages.txt
	@SOAK=$(SOAK) $(PY) -m e2e.argocd

e2e-cluster: setup image-packages ## install from images on real nodes, restart everything during a Job, remove it (3 min)
	@E2E_CLUSTER=1 $(PY) -m pytest e2e/suites/test_cluster_install.py

e2e-guest: setup ## pinning on cgroup v2, systemd, hyper-threads and two memory nodes, in a machine that QEMU emulates (10 min)
	@./e2e/testbed/nodes/install-packages.sh e2e/testbed/guest/packages.txt "an emulated machine"
	@CONCERTO_GUEST=1 CONCERTO_PATIENCE_SECONDS=600 $(PY) -m pytest -s e2e/suites/test_pinning_guest.py

chaos: setup ## end operator and agent at every named point TURNS times, and cut the leader off for 17 s in every way (1 h)
	@CONCERTO_FAILPOINT_TURNS=$(TURNS) CONCERTO_PARTITION_SECONDS=17 CONCERTO_KILLS=$(TURNS) CONCERTO_PINNING_FULL=1 $(PY) -m pytest -s \
	  e2e/suites/test_partition.py e2e/suites/test_late_requests.py e2e/suites/test_failpoints.py e2e/suites/test_survival.py \
	  e2e/suites/test_pinning_random.py e2e/suites/test_priority.py e2e/suites/test_gangs.py e2e/suites/test_scheduling.py

volumes: setup ## run a StatefulSet with claims on real nodes: local volumes, and those of a real provisioner (builds it, 5 min)
	@CONCERTO_REAL_VOLUMES=1 $(PYTEST) -s e2e/suites/test_volumes_real.py

conformance: setup ## Kubernetes' own tests of schedulers, with Concerto as default-scheduler on two real nodes (builds them, 4 min; 30 min)
	@$(PY) -m e2e.conformance

gangs: setup ## on real nodes, start a gang that needs both of them beside a stream of small pods, five times (3 min)
	@CONCERTO_REAL_GANGS=1 $(PYTEST) -s e2e/suites/test_gangs_real.py

compare: setup ## Concerto beside the real kube-scheduler on real nodes, in alternation (hours; COMPARE="--quick": a sample of 10 minutes)
	@$(PY) -m e2e.compare $(COMPARE)

compare-autoscaling: setup ## a real HTTP service under PredictiveHPA and its twin under HPA v2, in turn, on a real node (11 min a round)
	@$(PY) -m e2e.compare.autoscalers $(COMPARE)

compare-server: setup ## how long a real HTTP server takes to answer beside Jobs of Concerto and of kube-scheduler, on real nodes (10 min)
	@$(PY) -m e2e.compare.beside_server $(COMPARE)

bench: setup ## measure: scheduler against kube-scheduler, agent, operator; results in build/ (BENCH="--only cpusets": CPUs of new containers)
	@$(PY) -m e2e.bench $(BENCH)

scale: setup ## the operator among NODES simulated nodes that run PODS pods: start, memory, CPU, placing; build/scale.json (1 h, 16 GiB)
	@$(PY) -m e2e.bench --only scale --nodes $(NODES) --pods $(PODS) --docs

evaluate: .venv/.installed ## simulate: the control law against its peers, with every fault, and forecasts against HPA v2; tables in docs/evaluation.md (1 h)
	@$(PY) -m concerto.simulation.scheduling.evaluate
	@$(PY) -m concerto.cli.main evaluate-autoscaling --plots

lint: .venv/.installed ## ruff, mypy --strict, import-linter, side by side
	@$(MAKE) --no-print-directory --output-sync=target -j4 lint-types lint-layers lint-style $(BESIDE)

lint-types:
	@.venv/bin/mypy

lint-layers:
	@.venv/bin/lint-imports --no-logo

lint-style:
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .

# so that the processes of `make test` find each test file compiled, instead of doing so all at once
compiled-tests:
	@found=$$($(PY) -m pytest --collect-only -qq) || { tail -n 50 <<<"$$found"; exit 1; }

image: .venv/.installed image-packages ## build the images of operator and agent (by a Docker engine, or else by buildah on Debian packages: 30 s)
	@$(PY) -m e2e.image

reproducible: .venv/.installed image-packages ## build the images twice, and compare the digests (2 min)
	@$(PY) -m e2e.image.reproducible

pin-base: .venv/.installed ## pin the base image of the Dockerfile to the digest that its registry has now
	@$(PY) -m e2e.image.pin

sbom: .venv/.installed ## write the bills of materials of both images (CycloneDX): the libraries that requirements.lock pins, with their hashes
	@$(PY) -m e2e.image.sbom

image-packages:
	@docker info >/dev/null 2>&1 || ./e2e/testbed/nodes/install-packages.sh e2e/image/packages.txt "images without a Docker engine"

rights: setup ## write down afresh what the tokens of operator and agents may do (e2e/testbed/rights)
	@$(PY) -m e2e.testbed.rights

uninstall: ## remove Concerto from the cluster that kubectl talks to: bindings first, so that nothing stays pinned (OVERLAY=... for your own)
	@./manifests/uninstall.sh $(OVERLAY)

lock: .venv/.installed ## pin the dependencies again after a change of pyproject.toml
	@.venv/bin/uv pip compile -q pyproject.toml --extra operator --extra kubeconfig --extra plots --extra dev --generate-hashes \
	  --no-emit-index-url --no-emit-find-links --no-header --python-version 3.11 -o requirements.lock
