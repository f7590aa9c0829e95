# One-word commands. Everything lands in .venv, build and out; nothing is installed again until a source changes.
PYTHON ?= python3
DEMO_ARGS ?=
BENCH_ARGS ?=

SOPR_FAST_CUDA ?= AUTO
export SOPR_FAST_CUDA
export PATH := $(CURDIR)/.venv/bin:$(PATH)

PIP_INSTALL := .venv/bin/python -m pip install -q -c constraints.txt
BUILD_TOOLS := scikit-build-core pybind11 cmake ninja setuptools
PACKAGE := CMakeLists.txt README.md pyproject.toml $(shell find csrc sopr_fast -type f -not -name '*.pyc')
CPP := $(shell find csrc bench python_tests -name "*.cpp" -o -name "*.h" -o -name "*.cu")
INSTALLED := .venv/installed-$(SOPR_FAST_CUDA)
OPERATOR_TESTS := $(wildcard python_tests/ops/test_kmeans*.py python_tests/ops/test_segment_*.py) \
    $(addprefix python_tests/ops/test_,levels.py mlp.py threads.py)

.PHONY: demo test test-bare extras test-all test-emulated test-quality environments fuzz kill soak paper \
        bench lint format sanitize sanitize-threads matrix docs wheel wheel-check gpu-check gpu-tree whole-tree clean

demo: $(INSTALLED)
	.venv/bin/sopr-fast demo $(DEMO_ARGS)

# In processes of one thread each, as many as there are cores, four at most.
PYTEST := OMP_NUM_THREADS=1 .venv/bin/pytest -q -n auto --maxprocesses 4
test: .venv/test
	$(PYTEST) $(TEST_ARGS)

# The same tests without any library that users need not have: those that need one are skipped, no other may fail.
test-bare: build/bare/installed
	$(subst .venv,build/bare,$(PYTEST)) $(TEST_ARGS)

# A browser for reports, Ray and other large libraries; with them, `make test` leaves out less.
extras: .venv/extras .venv/browser

test-all: .venv/test extras
	.venv/bin/pytest -q -m "not fuzz"

# The CUDA kernels, compiled for an emulator of a GPU on the CPU.
EMULATED ?= emulated
test-emulated: .venv/test
	$(PYTEST) -m "$(EMULATED)"

# Trains on three splits of the embedded policies: minutes.
test-quality: .venv/test
	.venv/bin/pytest -q -s -m quality

# The tests as on other machines and as other users: instruction sets, BLAS kernels, one core, locale, read-only folder.
environments: .venv/test
	.ci/environments $(ENVIRONMENTS)

# Mutated files of every kind: FUZZ_EXAMPLES cases each, by default 100.
fuzz: .venv/test
	.venv/bin/pytest -q -m fuzz

# Killed runs; an hour of work in several processes: KILL_ARGS, SOAK_ARGS.
kill: .venv/test
	.venv/bin/python -m bench.reliability kill $(KILL_ARGS)

soak: .venv/test
	.venv/bin/python -m bench.reliability soak $(SOAK_ARGS)

# The paper's sets, then its tables, in out/paper-results. smoke takes minutes, small a day, paper weeks.
SCALE ?= smoke
PAPER_GAMES ?= $(if $(filter smoke,$(SCALE)),hopper,halfcheetah hopper walker2d)
paper: .venv/test .venv/paper
	for game in $(PAPER_GAMES); do \
	    .venv/bin/python -m bench.paper all --game $$game --scale $(SCALE) || exit 1; \
	done
	.venv/bin/python -m bench.paper studies --scale $(SCALE) --sets out/paper --results out/paper-results \
	    $(PAPER_ARGS)

bench: $(INSTALLED) .venv/bench
	mkdir -p out
	.venv/bin/pytest -q -s bench --benchmark-json=out/bench.json $(BENCH_ARGS)

lint: .venv/lint
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/clang-format --dry-run --Werror $(CPP)
	.venv/bin/mypy

format: .venv/lint
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .
	.venv/bin/clang-format -i $(CPP)

# The operator tests on a CPU module that checks memory accesses and undefined behaviour.
sanitize: build/sanitize/installed
	LD_PRELOAD="$$($(or $(CXX),c++) -print-file-name=libasan.so) $$($(or $(CXX),c++) -print-file-name=libstdc++.so)" \
	PYTHONPATH=build/sanitize/site \
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
	.venv/bin/pytest -q -s $(OPERATOR_TESTS)

# The kernels on several threads, from several Python threads, with a module that detects data races. Libraries without
# instrumentation (Python, torch) are ignored.
sanitize-threads: build/sanitize-threads/installed
	LD_PRELOAD="$$($(or $(CXX),c++) -print-file-name=libtsan.so)" PYTHONPATH=build/sanitize-threads/site:python_tests \
	TSAN_OPTIONS=halt_on_error=1:ignore_noninstrumented_modules=1 \
	.venv/bin/python -m support.race_kernels

# The tests with the oldest torch that pyproject.toml admits and with the newest there is.
matrix: build/matrix/oldest/installed build/matrix/newest/installed
	for torch in oldest newest; do \
	    build/matrix/$$torch/bin/python -m sopr_fast && build/matrix/$$torch/bin/pytest -q || exit 1; \
	done

# Runs the code of every page; then builds the site in build/site. Warnings, such as broken links, are errors.
docs: .venv/docs .venv/test
	$(PYTEST) -m docs
	.venv/bin/mkdocs build --strict

# A source distribution, and a Linux wheel that is built from it outside of git; at most 2 MB.
wheel: .venv/wheel
	rm -rf dist build/dist
	.venv/bin/python -m build --no-isolation --outdir build/dist
	.venv/bin/auditwheel repair --wheel-dir dist build/dist/*.whl
	cp build/dist/*.tar.gz dist
	test -z "$$(find dist -name '*.whl' -size +1953k)" || { echo "a wheel exceeds 2 MB"; exit 1; }

# The wheel in clean environments, with the oldest torch that pyproject.toml admits and with the newest there is.
wheel-check: build/wheel-check/oldest/made build/wheel-check/newest/made
	for torch in oldest newest; do \
	    build/wheel-check/$$torch/bin/python -m pip install -q --force-reinstall --no-deps dist/*.whl && \
	    build/wheel-check/$$torch/bin/python .ci/check_wheel.py || exit 1; \
	done

# On a machine with a GPU, with the torch and the build tools of $(PYTHON), without network: see bench/gpu.md.
gpu-check:
	$(PYTHON) bench/gpu_run.py first
	$(PYTHON) bench/gpu_run.py second

# Takes the benchmark sets out of the working tree, but for what the benchmarks of kernels read; fails above 40 MB.
gpu-tree:
	git sparse-checkout set --no-cone '/*' '!/bench/paper/sets/' '!/bench/selection/sets/' \
	    '/bench/paper/sets/small/halfcheetah-v4/policies.npz' '/bench/paper/sets/small/halfcheetah-v4/returns.csv'
	git ls-files -z | xargs -0 du -cb 2>/dev/null | awk 'END {print $$1 / 1e6 " MB"; exit $$1 > 4e7}'

whole-tree:
	git sparse-checkout disable

clean:
	rm -rf .venv build out dist

.venv/made:
	$(PYTHON) -m venv .venv
	touch $@

.venv/lint: $(INSTALLED)
	$(PIP_INSTALL) ruff clang-format mypy
	touch $@

.venv/tools: .venv/made constraints.txt
	$(PIP_INSTALL) $(BUILD_TOOLS)
	touch $@

$(INSTALLED): .venv/tools constraints.txt $(PACKAGE)
	$(PIP_INSTALL) --no-build-isolation --config-settings=build-dir=build/wheel .
	rm -f .venv/installed-*
	touch $@

.venv/test: EXTRAS := test,test-formats
.venv/extras: EXTRAS := test-extras
.venv/paper: EXTRAS := paper
.venv/bench: EXTRAS := bench
.venv/docs: EXTRAS := docs
.venv/wheel: EXTRAS := wheel
.venv/test .venv/extras .venv/paper .venv/bench .venv/docs .venv/wheel: pyproject.toml constraints.txt | $(INSTALLED)
	$(PIP_INSTALL) --no-build-isolation --config-settings=build-dir=build/wheel '.[$(EXTRAS)]'
	touch $@

.venv/browser: .venv/extras .ci/browser
	.ci/browser
	touch $@

build/bare/installed: $(INSTALLED)
	test -x build/bare/bin/python || $(PYTHON) -m venv build/bare
	build/bare/bin/python -m pip install -q -c constraints.txt $(BUILD_TOOLS)
	build/bare/bin/python -m pip install -q -c constraints.txt --no-build-isolation \
	    --config-settings=build-dir=build/wheel '.[test]'
	touch $@

build/sanitize/installed: $(INSTALLED) .venv/test
	$(PIP_INSTALL) --no-build-isolation --no-deps --upgrade --target build/sanitize/site \
	    --config-settings=build-dir=build/sanitize/build --config-settings=install.strip=false --config-settings=cmake.define.SOPR_FAST_CUDA=OFF \
	    --config-settings=cmake.define.SOPR_FAST_SANITIZE=address,undefined .
	touch $@

build/sanitize-threads/installed: $(INSTALLED) .venv/test
	$(PIP_INSTALL) --no-build-isolation --no-deps --upgrade --target build/sanitize-threads/site \
	    --config-settings=build-dir=build/sanitize-threads/build --config-settings=install.strip=false --config-settings=cmake.define.SOPR_FAST_CUDA=OFF \
	    --config-settings=cmake.define.SOPR_FAST_SANITIZE=thread .
	touch $@

build/matrix/constraints.txt: constraints.txt
	mkdir -p build/matrix
	grep -vE '^(torch|sympy|triton|cuda-|nvidia-)' $< > $@

build/wheel-check/oldest/made: TORCH := 'torch==2.6.*'
build/wheel-check/newest/made: TORCH := torch
build/wheel-check/%/made:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install -q $(TORCH) numpy pandas scipy safetensors tqdm jinja2 h5py matplotlib
	touch $@

build/matrix/oldest/installed: TORCH := 'torch==2.6.*'
build/matrix/newest/installed: TORCH := torch
build/matrix/%/installed: build/matrix/constraints.txt $(PACKAGE)
	test -x build/matrix/$*/bin/python || $(PYTHON) -m venv build/matrix/$*
	build/matrix/$*/bin/python -m pip install -q --upgrade --upgrade-strategy eager -c $< $(TORCH) $(BUILD_TOOLS) '.[test]'
	touch $@
