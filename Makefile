# make native  build the kernel in place              make sanitize  test it under address sanitizer
# make test    lint, types and the quick tests        make demo    train a small network on real data
#              make demo BUCKET=1 trains from an S3 bucket that it serves itself
# make test-slow  the slow tests                      make test-faults  every attack, thousands of times
# make coverage  lines and branches of the engine that the quick tests run
# make test-oldest  the quick tests with the oldest versions of what voxpipe depends on
# make wheel   build the wheel and the sdist, and test both where there is neither a checkout nor git
# make test-macos  test without what Linux has and macOS lacks
# make avx512  emulate the kernel's AVX-512 where the processor lacks it, and compare its results
# make bench   speed, memory and planning, short settings
# make docs    build the documentation site in build/docs/html; a warning is an error
# make docs-serve  build it and serve it at http://127.0.0.1:8000 (another port: DOCS_PORT=8001)
# make aarch64 compile the kernel for ARM, emulate it, and compare its results with this machine's
# Each makes a virtual environment when there is none. Another Python: make test PYTHON=python3.13

PYTHON ?= python3
VENV ?= .venv
DEMO_OUTPUT ?= demo-output
DOCS_PORT ?= 8000
FUZZ_COUNT ?= 10000
# Debian: apt install g++-aarch64-linux-gnu qemu-user
AARCH64_CXX ?= aarch64-linux-gnu-g++
AARCH64_RUN ?= qemu-aarch64
SANITIZERS := -fsanitize=address,undefined -fno-sanitize-recover=undefined
PYTEST_ARGS ?=
# Processes of the quick tests. The tests of a file share one process. Few cores run two processes
# each, because tests wait for servers and workers half of the time.
CORES := $(shell nproc 2> /dev/null || getconf _NPROCESSORS_ONLN)
PROCESSES ?= $(shell echo $$(($(CORES) < 8 ? 2 * $(CORES) : $(CORES))))

RUN := $(VENV)/bin/python
# One line per step, with its time; -v shows the output of the step.
STEP := sh tools/step.sh
# Most modules of the packages are never imported: Python compiles the others at their first import.
VERSIONS ?= constraints.txt
PIP := $(RUN) -m pip install --quiet --no-compile --disable-pip-version-check $(if $(VERSIONS),-c $(VERSIONS))
# What an installation depends on; sources of compiled kernels count as soon as there are any.
BUILD_INPUTS := setup.cfg pyproject.toml constraints.txt package/__init__.py \
	$(wildcard setup.py native/*.cpp native/*.hpp native/*.h)

.PHONY: test quick test-oldest test-slow test-faults test-macos coverage lint types native sanitize aarch64 avx512
.PHONY: wheel demo bench docs docs-serve clean
.DELETE_ON_ERROR:

# Without bytecode, each process of the tests compiles the package and rewrites all asserts anew.
unexport PYTHONDONTWRITEBYTECODE

# By a variable: `make --dry-run` runs each line that names MAKE itself.
CHECKS = $(MAKE) --no-print-directory --keep-going lint types

QUICK = OMP_NUM_THREADS=1 VOXPIPE_TEST_NATIVE=1 $(STEP) -v "quick tests" $(RUN) -m pytest -q -m "not slow" \
	-n $(PROCESSES) --dist loadfile $(PYTEST_ARGS)

# Lint and types are checked meanwhile, and report at the end; each of the three fails the whole.
test: $(VENV)/installed-test
	@$(RUN) tools/link_package.py
	@mkdir -p build
	@$(CHECKS) > build/checks.log 2>&1 & checks=$$!; \
	trap "kill $$checks" INT TERM; \
	$(QUICK); tests=$$?; \
	wait $$checks; checks=$$?; cat build/checks.log; exit $$((tests | checks))

# The quick tests alone: what a forge runs on each Python.
quick: $(VENV)/installed-test
	@$(RUN) tools/link_package.py
	@$(QUICK)

# The quick tests with the oldest versions of what voxpipe depends on, in an environment of their own.
OLDEST = $(MAKE) --no-print-directory quick VENV=build/oldest VERSIONS=constraints-min.txt

test-oldest:
	@$(OLDEST)

# Also the properties of the quick tests, with more examples. The demo's data come with its own extra.
test-slow: $(VENV)/installed-test $(VENV)/installed-demo
	OMP_NUM_THREADS=1 VOXPIPE_TEST_NATIVE=1 VOXPIPE_TEST_EXAMPLES=100 \
		$(RUN) -m pytest -q -m "slow or hypothesis" $(PYTEST_ARGS)

# The paths of macOS, on Linux: names of the standard library that macOS lacks are absent, in
# processes of workers too. MACOS_TESTS names other tests.
MACOS_TESTS ?= tests/reading_services/test_matrix.py tests/reading_services/test_service_contracts.py \
	tests/reading_services/test_without_torch.py tests/volumes/test_array_store.py \
	tests/volumes/test_local_io.py tests/volumes/test_convert.py tests/dataloader2/test_determinism.py

test-macos: $(VENV)/installed-test
	@$(RUN) tools/link_package.py
	@PYTHONPATH=$(CURDIR)/tests/macos OMP_NUM_THREADS=1 VOXPIPE_TEST_NATIVE=1 \
		$(STEP) -v "tests of the paths of macOS" $(RUN) -m pytest -q -n $(PROCESSES) --dist loadfile \
		-m "not slow" $(PYTEST_ARGS) $(MACOS_TESTS)

# Broken files, stores and processes; a failing attack says by which command it is tried again.
test-faults: $(VENV)/installed-test
	OMP_NUM_THREADS=1 VOXPIPE_TEST_NATIVE=1 $(RUN) -m pytest -q tests/faults --whole-faults -o faulthandler_timeout=0 $(PYTEST_ARGS)

# Lines and branches of the engine that the quick tests run, in workers too; the total comes last.
# The path is absolute, because processes of some tests run in other folders.
coverage: export COVERAGE_FILE = $(CURDIR)/build/coverage/data
coverage: $(VENV)/installed-test
	$(RUN) tools/link_package.py
	@mkdir -p build/coverage
	$(RUN) -m coverage erase
	@OMP_NUM_THREADS=1 VOXPIPE_TEST_NATIVE=1 $(RUN) -m coverage run -m pytest -q -m "not slow" \
		-n $(PROCESSES) --dist loadfile $(PYTEST_ARGS); tests=$$?; \
	$(RUN) -m coverage combine --quiet && $(RUN) -m coverage report --sort=miss; exit $$((tests | $$?))

lint: $(VENV)/installed-test
	@$(STEP) "lint" $(RUN) -m ruff check .
	@$(STEP) "format" $(RUN) -m ruff format --check .

types: $(VENV)/installed-test
	@$(RUN) tools/link_package.py
	@$(STEP) "types" $(RUN) -m mypy

# In place, as package/_native.so: what an editable install does, for checkouts that are not installed.
# Environments of Python 3.12 and later have no setuptools, and those of 3.11 an old one.
native: $(VENV)/created
	@$(RUN) -c "import setuptools.command.bdist_wheel" 2> /dev/null || $(RUN) -m pip install --quiet "setuptools>=77"
	@$(STEP) "native kernel" $(RUN) setup.py --quiet build_ext --inplace

# Random jobs, then the tests of the resampler, of values and of chunks, with every access and shift watched.
sanitize: build/fuzz $(VENV)/installed-test
	build/fuzz $(FUZZ_COUNT)
	$(RUN) tools/link_package.py
	CFLAGS="$(SANITIZERS)" CXXFLAGS="$(SANITIZERS)" LDFLAGS="$(SANITIZERS)" \
		$(RUN) setup.py --quiet build_ext --inplace --force
	# Newer setuptools take CXXFLAGS for C++ and pass CFLAGS over: what is tested has to be checked.
	grep -q __asan_report package/_native.so
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so.6)" \
		ASAN_OPTIONS=detect_leaks=0 OMP_NUM_THREADS=1 $(RUN) -m pytest -q tests/spatial \
		tests/intensity/test_counter_noise.py tests/intensity/test_value_passes.py \
		tests/volumes/test_native_chunks.py tests/volumes/test_native_cover.py \
		$(wildcard tests/reading_services/test_threads*.py); \
		status=$$?; $(RUN) setup.py --quiet build_ext --inplace --force; exit $$status

build/fuzz: tests/native/fuzz_resample.cpp $(wildcard native/*)
	mkdir -p build
	$(CXX) -std=c++17 -O1 -g -ffp-contract=off -Wno-psabi $(SANITIZERS) $(filter %.cpp,$^) -o $@

# The same random jobs on both processors: one digest of all results, which has to be the same.
aarch64: build/fuzz-aarch64 build/fuzz-host
	@command -v $(AARCH64_RUN) > /dev/null || { echo "$< is compiled, but not run: there is no" \
		"$(AARCH64_RUN) (Debian: qemu-user); name another emulator: AARCH64_RUN=..." >&2; exit 1; }
	@there=$$($(AARCH64_RUN) build/fuzz-aarch64 $(FUZZ_COUNT)) && here=$$(build/fuzz-host $(FUZZ_COUNT)) \
		&& echo "aarch64: $$there" && echo "here:    $$here" \
		&& { test "$${there##* }" = "$${here##* }" || { echo "the results differ" >&2; exit 1; }; }

# Static: an emulator has no libraries of the other processor.
build/fuzz-aarch64: tests/native/fuzz_resample.cpp $(wildcard native/*)
	@command -v $(AARCH64_CXX) > /dev/null || { echo "there is no $(AARCH64_CXX)" \
		"(Debian: g++-aarch64-linux-gnu); name another cross compiler: AARCH64_CXX=..." >&2; exit 1; }
	mkdir -p build
	$(AARCH64_CXX) -std=c++17 -O2 -static -ffp-contract=off -Wno-psabi $(filter %.cpp,$^) -o $@

build/fuzz-host: tests/native/fuzz_resample.cpp $(wildcard native/*)
	mkdir -p build
	$(CXX) -std=c++17 -O2 -ffp-contract=off -Wno-psabi $(filter %.cpp,$^) -o $@

# AVX-512 for a processor without it (Debian: libsimde-dev): the fuzzer compares it with the other paths.
avx512: build/fuzz-avx512
	build/fuzz-avx512 $(FUZZ_COUNT) | grep "paths up to [34],"

build/fuzz-avx512: tests/native/fuzz_resample.cpp tests/native/emulated_avx512.h $(wildcard native/*)
	rm -rf build/avx512
	mkdir -p build/avx512/tests/native
	cp -r native build/avx512
	cp $(filter tests/%,$^) build/avx512/tests/native
	sed -i -e '/^#pragma GCC target/d' -e 's|<immintrin.h>|"../tests/native/emulated_avx512.h"|' \
		build/avx512/native/path_avx512.cpp
	sed -i 's/__builtin_cpu_supports("avx512[a-z]*")/true/g' build/avx512/native/kernel.cpp
	$(CXX) -std=c++17 -O2 -mavx2 -mfma -ffp-contract=off -Wno-psabi \
		build/avx512/native/*.cpp build/avx512/tests/native/fuzz_resample.cpp -o $@

# With BUCKET=1 a small S3 server of this machine holds the cases; its address and credentials
# reach the demo through the environment, as those of a real bucket would.
SERVED := $(RUN) tests/s3_server.py $(DEMO_OUTPUT)/buckets --

demo: $(VENV)/installed-demo
	@$(STEP) -v "demo" $(if $(BUCKET),$(SERVED)) $(RUN) examples/demo --output $(DEMO_OUTPUT) \
		$(if $(BUCKET),--bucket s3://voxpipe-demo/cases)

# Speed, memory and planning of what users run. The others (kernel, diagnosing, accuracy, codecs,
# remote, zarr_reader, b2nd, resuming, decoded_twice) are about one part each, take minutes, and are
# run when that part changes: see benchmarks/README.md.
bench: $(VENV)/installed-bench
	$(RUN) benchmarks/throughput.py --workers 0 2 --seconds 5
	$(RUN) benchmarks/memory.py
	$(RUN) benchmarks/io.py --count 1
	$(RUN) benchmarks/scaling.py --sections volume patch chunk --rounds 3
	$(RUN) benchmarks/transport.py
	$(RUN) benchmarks/planning.py --repeats 5
	$(RUN) benchmarks/overhead.py

# The wheel and the sdist in dist/. Each is installed where there is neither a checkout nor git, with
# the versions of a file, and runs tests of the unpacked sdist. All quick tests take twice as long as
# make test: make wheel WHEEL_TESTS="tests/core tests/volumes" runs some. Oldest versions of what
# voxpipe depends on: make wheel VERSIONS=constraints-min.txt; the newest: make wheel VERSIONS=
WHEEL := build/wheel
WHEEL_RUN := $(CURDIR)/$(WHEEL)/env/bin/python
WHEEL_PIP := $(WHEEL_RUN) -m pip install --quiet --disable-pip-version-check $(if $(VERSIONS),-c $(VERSIONS))
WHEEL_TESTS ?= tests
# A folder without a repository above it: git would find this one.
WHEEL_PYTEST = cd $(WHEEL)/sdist/voxpipe-* && GIT_CEILING_DIRECTORIES=$(CURDIR)/$(WHEEL) OMP_NUM_THREADS=1 \
	VOXPIPE_TEST_NATIVE=1 $(WHEEL_RUN) -m pytest -q -m "not slow" -n $(PROCESSES) --dist loadfile \
	$(PYTEST_ARGS) $(WHEEL_TESTS)

wheel:
	@rm -rf $(WHEEL) dist
	@mkdir -p $(WHEEL)/sdist
	@$(STEP) "environment to build in" sh -c '$(PYTHON) -m venv $(WHEEL)/tools && \
		$(WHEEL)/tools/bin/python -m pip install --quiet build twine'
	@$(STEP) "sdist, and wheel from it" $(WHEEL)/tools/bin/python -m build --outdir dist
	@$(STEP) "metadata" $(WHEEL)/tools/bin/python -m twine check --strict dist/*
	@tar -xzf dist/voxpipe-*.tar.gz -C $(WHEEL)/sdist
	@$(STEP) "environment to test in" $(PYTHON) -m venv $(WHEEL)/env
	@$(STEP) "install torch" $(WHEEL_PIP) torch
	@$(STEP) "install the wheel" sh -c '$(WHEEL_PIP) "$$(ls dist/*.whl)[test]"'
	@$(STEP) -v "tests of the wheel" sh -c '$(WHEEL_PYTEST)'
	@$(STEP) "install the sdist" $(WHEEL_PIP) --force-reinstall --no-deps dist/voxpipe-*.tar.gz
	@$(STEP) -v "tests of the sdist" sh -c '$(WHEEL_PYTEST)'
# Tutorials run first, and pages, reference and linked files are gathered; the build then needs no network.
docs: $(VENV)/installed-docs
	@$(STEP) "tutorials" $(RUN) tools/run_tutorials.py build/docs/notebooks
	@$(STEP) "pages and reference" $(RUN) tools/stage_docs.py --notebooks build/docs/notebooks build/docs/source
	@$(STEP) "site" $(RUN) -m sphinx -W --keep-going -q -b html -c docs -d build/docs/doctrees \
		build/docs/source build/docs/html
	@echo "build/docs/html/index.html"

docs-serve: docs
	$(RUN) -m http.server $(DOCS_PORT) --bind 127.0.0.1 --directory build/docs/html

clean:
	rm -rf $(VENV) package/_native.* .typing .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp per step: a second run is instant, and a changed input installs again.
$(VENV)/created:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "voxpipe needs Python 3.11 or later; name one: make PYTHON=python3.x")'
	@$(STEP) "environment in $(VENV)" $(PYTHON) -m venv $(VENV)
	@touch $@

# First and alone, so that nothing else decides which torch it is.
$(VENV)/installed-torch: constraints.txt $(VENV)/created
	@$(STEP) "install torch" $(PIP) torch
	@touch $@

# Python takes a folder "voxpipe" in the working directory for a package, unless the finder of the
# editable install comes first.
FINDER_FIRST := import sys; sys.meta_path.sort(key=lambda f: getattr(f, "__name__", "") != "_EditableFinder")

$(VENV)/installed-%: $(BUILD_INPUTS) $(VENV)/installed-torch
	@$(STEP) "install voxpipe[$*]" $(PIP) -e ".[$*]"
	@$(RUN) -c 'import pathlib, sys, sysconfig; pathlib.Path(sysconfig.get_path("purelib"), "voxpipe_first.pth").write_text(sys.argv[1])' '$(FINDER_FIRST)'
	@touch $@
