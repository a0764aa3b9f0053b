# Every target works from a fresh clone: what it needs is made first.
#   TORCH_WHEEL=path   base wheel to use instead of the download, offline
#   PRISTINE=1         `make demo` also runs the official release, in a venv of its own
#   SLOW=1             `make test` runs all tests; CI runs all but those marked long

PYTHON ?= python3
BIN := .venv/bin
RUN := $(BIN)/python

# The base requirement is exact: a machine-wide constraint could only forbid it.
export PIP_CONSTRAINT ?= /dev/null
export PIP_DISABLE_PIP_VERSION_CHECK ?= 1

CHECKERS := $(addprefix tools/,check.py check_static.py check_tree.py cli.py \
    negative.py seams.py stats.py sync.py ui.py)
# Folders are listed too, so that a file that is removed counts as a change.
WHEEL_INPUTS := $(filter-out $(CHECKERS),$(wildcard tools/*.py)) \
    $(shell find torch_dynamo_overlay csrc patches pins -not -path '*/__pycache__*') \
    CMakeLists.txt \
    requirements/base.txt $(wildcard $(TORCH_WHEEL))
# $(call timed,what,command): run it, then say how long it took.
timed = set -e; start=$$(date +%s); $(2); \
    echo "$(1): $$(($$(date +%s) - start)) s" >&2

SELECT = $(if $(SLOW),,$(if $(CI),-m "not long",-m "not slow and not long"))

.PHONY: demo wheel venv test bench lint check negative-control clean \
    test-tools test-dynamo FORCE

demo: venv $(if $(PRISTINE),.venv-pristine/.torch)
	$(RUN) examples/digits.py $(if $(PRISTINE),--pristine .venv-pristine/bin/python)

wheel: .work/wheel
	@cat $<

venv: .venv/.torch

test: check lint test-tools test-dynamo negative-control

bench: venv
	set -e; for script in benchmarks/*.py; do $(RUN) $$script; done

lint: venv
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check
	$(RUN) -m mypy --strict tools setup.py test/tools test/pristine/test_guard_lists.py
	$(RUN) -m mypy torch_dynamo_overlay/torch/_dynamo/nn_module_hooks
	MYPYPATH=test/dynamo:benchmarks $(RUN) -m mypy $(wildcard test/dynamo examples benchmarks)

check: venv
	$(RUN) -m tools check

negative-control: venv
	$(RUN) -m tools negative-control

test-tools: venv
	$(RUN) -m pytest -q test/tools test/pristine

test-dynamo: venv
	$(RUN) -m pytest -q -n auto --dist worksteal $(SELECT) test/dynamo

# Keeps .work/torch, which may hold commits of yours, and the downloaded wheel.
clean:
	rm -rf .venv .venv-pristine build dist .work/wheel .work/base
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache

# Stamps. Each says that what it stands for is newer than all it was made from.
.venv/.tools .venv-pristine/.tools: %/.tools: requirements/dev.txt requirements/tools.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "error: $(PYTHON) is not Python 3.11 or later" >&2; \
	    echo "  next: make PYTHON=python3.11" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' || { \
	    echo "error: $(PYTHON) has no venv or pip" >&2; \
	    echo "  next: install them (for example apt-get install python3-venv)" >&2; \
	    exit 2; }
	@git --version >/dev/null || { \
	    echo "error: git is not installed" >&2; \
	    echo "  next: install it (for example apt-get install git)" >&2; exit 2; }
	@$(call timed,$*: tools installed,$(PYTHON) -m venv $*; \
	    $*/bin/python -m pip install -r requirements/dev.txt)
	@touch $@

.work/base: FORCE
	@mkdir -p .work
	@echo "$(TORCH_WHEEL)" | cmp -s - $@ || echo "$(TORCH_WHEEL)" > $@

.work/wheel: .venv/.tools .work/base $(WHEEL_INPUTS)
	@$(call timed,wheel built,$(RUN) -m tools wheel > $@.new)
	@mv $@.new $@

.venv/.torch: .work/wheel
	@$(call timed,.venv: wheel installed,$(RUN) -m pip uninstall -q -y torch; \
	    $(RUN) -m pip install "$$(cat $<)")
	@touch $@

.venv-pristine/.torch: .venv-pristine/.tools .venv/.tools .work/base requirements/base.txt
	@$(call timed,.venv-pristine: wheel installed,wheel=$$($(RUN) -m tools fetch); \
	    .venv-pristine/bin/python -m pip install "$$wheel")
	@touch $@
