# `make demo` and `make test` need Python 3.11 or newer, and the tests of Spark Java 17 or newer. Each makes .venv once, with
# what it needs, and starts PostgreSQL and Redis for itself unless DATABASE_URL and REDIS_URL name real ones. ARGS="…" is handed on.

VENV := .venv
BIN := $(VENV)/bin
SAMPLE := $(VENV)/.sample
INSTALLED := $(VENV)/.installed
WARM := $(VENV)/.warm
# The pins are complete, so that nothing has to be resolved. uv takes a fraction of pip's processor time, but does not read
# pip's configuration, which may name another index, and there is no wheel of it for every machine. Its own variables, such
# as UV_SYSTEM_PYTHON in images, must not choose another Python.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps
UV := $(BIN)/python -m uv pip install --quiet --system-certs --no-deps --python $(BIN)/python
# An environment with the newest versions of some packages: $(call environment,build/nox,nox uv).
environment = { $(BIN)/python -m uv venv --quiet --clear --python $(BIN)/python $1 && \
	    $(BIN)/python -m uv pip install --quiet --system-certs --python $1/bin/python $2; } || { \
	    $(BIN)/python -m venv --clear $1 && $1/bin/python -m pip install --quiet --disable-pip-version-check $2; }
ALL_BUT_UV = grep -v '^uv==' $< | $(PIP) -r /dev/stdin
FREEZE := echo 'async-timeout==5.0.1 ; python_full_version < "3.11.3"'; \
	  build/pins/bin/python -m pip freeze --all --exclude pip --exclude enode_django --exclude async-timeout
EMBEDDED := $(BIN)/python -m sample_project.embedded
# 3.11 and 3.12 first: for them every requirement comes as a wheel, so that no compiler is needed. A distribution's own is
# before others of its version: it is compiled with the optimisation by profiles, which pyenv leaves out unless told, and
# takes seven tenths of the processor time.
PYTHONS := /usr/bin/python3.11 python3.11 /usr/bin/python3.12 python3.12 /usr/bin/python3.13 python3.13 python3.14 python3
USABLE := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
JAVA := $(if $(JAVA_HOME),$(JAVA_HOME)/bin/)java
JAVA_MAJOR := sed -n 's/.* version "\([0-9]*\).*/\1/p'

PARALLEL := --numprocesses=auto --dist=loadscope --no-loadscope-reorder

# Else each of some thousand processes of a test run would compile the project for itself.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo sample test pytest lint format bench chaos mutants docs screenshots java chromium promtool pgbouncer pins dist audit matrix clean

demo: $(SAMPLE)
	@$(EMBEDDED) postgres broker -- sh -c '$(BIN)/python manage.py migrate -v 0 && exec $(BIN)/python manage.py bankdemo $(ARGS)'

# The sample's pages, with accounts and workers, until Ctrl-C: make sample ARGS="8001".
sample: $(SAMPLE)
	@$(EMBEDDED) postgres broker -- sh -c '$(BIN)/python manage.py migrate -v 0 && exec $(BIN)/python manage.py banksample $(ARGS)'

# Everything: the linters beside the tests, which are shared by three processes a core. With ARGS just the tests that it
# names, in one process: make test ARGS="tests/unit -x".
test: $(if $(ARGS),$(INSTALLED) java,$(WARM)) chromium promtool pgbouncer
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target $(if $(ARGS),,lint) pytest

# The plus exempts the line from being printed at the end only.
pytest:
	+$(BIN)/python -m pytest $(or $(ARGS),$(PARALLEL))

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED)
	@$(EMBEDDED) -- $(BIN)/python -m benchmarks $(ARGS)

# Faults on real processes under load, and a checker of its own: make chaos ARGS="--minutes 30 --seed 7".
chaos: $(INSTALLED)
	@$(BIN)/python -m chaos $(ARGS)

# How many small changes of the code the tests notice: make mutants ARGS="--sample 50".
mutants: $(INSTALLED)
	@$(BIN)/python -m tests.mutants $(ARGS)

# The site, in build/docs. No database is asked.
docs: $(INSTALLED)
	$(BIN)/python -m sphinx -W --keep-going -q -c docs -b html . build/docs
	@echo "built: build/docs/index.html"

# The pictures of pages in docs/images/screenshots, taken of the sample with demo data.
screenshots: $(INSTALLED) chromium
	@$(EMBEDDED) -- $(BIN)/python -m sample_project.screenshots $(ARGS)

# Without it the tests of Spark are skipped, unless services are required.
java:
	@major="$$("$(JAVA)" -version 2>&1 | $(JAVA_MAJOR))"; \
	if [ "$${major:-0}" -lt 17 ]; then \
	    echo "no Java 17 or newer, which Spark needs, as $(JAVA): install one (on Debian and Ubuntu:" >&2; \
	    echo "apt install openjdk-17-jre-headless), or name its directory: JAVA_HOME=…" >&2; \
	    [ "$$ENODE_REQUIRE_SERVICES" != 1 ]; \
	fi

# Six processes would each compile all tests, and each start of Spark load its classes anew. Java may be missing.
$(WARM): $(INSTALLED) | java
	@echo "compiling the tests and archiving the classes of Spark (once) …"
	@if command -v "$(JAVA)" >/dev/null; then $(BIN)/python -m tests.java >/dev/null 2>&1 & fi; \
	$(BIN)/python -m pytest --collect-only -q >/dev/null 2>&1; wait; touch $@

# Without it the tests in a browser are skipped, unless services are required. The headless shell opens a page with a fifth
# of the processor time that chromium takes, which does where there is no shell.
chromium:
	@if ! command -v chromium-headless-shell >/dev/null; then \
	    if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	        echo "installing Debian's chromium-headless-shell (once) …"; \
	        { apt-get -qq update && { apt-get -qq install --no-install-recommends -y chromium-headless-shell || \
	            command -v chromium || apt-get -qq install --no-install-recommends -y chromium; }; } >/dev/null; \
	    fi; \
	    if ! command -v chromium-headless-shell >/dev/null && ! command -v chromium >/dev/null; then \
	        echo "no chromium, which the tests in a browser need: install one (on Debian and Ubuntu:" >&2; \
	        echo "apt install chromium-headless-shell)" >&2; \
	        [ "$$ENODE_REQUIRE_SERVICES" != 1 ]; \
	    fi; \
	fi

# Without it the test behind PgBouncer is skipped, unless services are required.
pgbouncer:
	@if ! command -v pgbouncer >/dev/null; then \
	    if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	        echo "installing Debian's pgbouncer (once) …"; \
	        { apt-get -qq update && RUNLEVEL=1 apt-get -qq install --no-install-recommends -y pgbouncer; } >/dev/null; \
	    fi; \
	    if ! command -v pgbouncer >/dev/null; then \
	        echo "no pgbouncer, which a test needs: install one (on Debian and Ubuntu: apt install pgbouncer)" >&2; \
	        [ "$$ENODE_REQUIRE_SERVICES" != 1 ]; \
	    fi; \
	fi

# The tests of the alerts need it. Debian has it in a package with a server, of which only this one program is taken.
promtool: $(INSTALLED)
	@if ! command -v promtool >/dev/null && [ ! -x $(BIN)/promtool ]; then \
	    if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	        echo "fetching promtool from Debian's prometheus (once) …"; \
	        scratch=$$(mktemp -d) && chmod 755 "$$scratch" && \
	        { apt-get -qq update && (cd "$$scratch" && apt-get -qq download prometheus) && \
	        dpkg -x "$$scratch"/prometheus_*.deb "$$scratch/x" && cp "$$scratch/x/usr/bin/promtool" $(BIN)/; } >/dev/null 2>&1; \
	        rm -rf "$$scratch"; \
	    fi; \
	    if ! command -v promtool >/dev/null && [ ! -x $(BIN)/promtool ]; then \
	        echo "no promtool, which the tests of the alerts need: install Prometheus (on Debian and Ubuntu:" >&2; \
	        echo "apt install prometheus)" >&2; \
	        [ "$$ENODE_REQUIRE_SERVICES" != 1 ]; \
	    fi; \
	fi

$(SAMPLE): requirements-sample.txt
	@for candidate in $(or $(PYTHON),$(PYTHONS)); do \
	    if "$$candidate" -c '$(USABLE)' 2>/dev/null; then python="$$candidate"; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	    echo "no Python 3.11 or newer with venv and ensurepip among: $(or $(PYTHON),$(PYTHONS))" >&2; \
	    echo "install one (on Debian and Ubuntu: apt install python3-venv), or name it: make PYTHON=…" >&2; \
	    exit 1; \
	fi; \
	echo "installing what the sample needs into $(VENV) (once) …"; \
	"$$python" -m venv --clear $(VENV) && \
	    { { $(PIP) --only-binary=uv "$$(grep '^uv==' $<)" && $(UV) -r $<; } || $(ALL_BUT_UV); }
	@touch $@

$(INSTALLED): requirements.txt $(SAMPLE)
	@echo "installing the pinned requirements into $(VENV) (once) …"; $(UV) -r $< || $(ALL_BUT_UV)
	@touch $@

# The newest versions that pyproject.toml allows become the pinned ones.
pins:
	rm -rf build/pins
	python3.11 -m venv build/pins
	build/pins/bin/python -m pip install --quiet --upgrade "pip>=25.1" setuptools
	build/pins/bin/python -m pip install --quiet ".[redis,celery,api,embedded]" --group sample
	{ echo '# Those of requirements.txt that `make demo` and `make sample` need, made by: make pins'; $(FREEZE); } > requirements-sample.txt
	build/pins/bin/python -m pip install --quiet ".[redis,celery,api,spark,metrics,tracing,embedded]" --group dev
	{ echo '# Every package of sample, tests and tools, made by: make pins'; $(FREEZE); } > requirements.txt

# The wheel and the source distribution, in dist, and what PyPI would refuse of them.
dist: $(INSTALLED)
	@[ -x build/dist/bin/twine ] || $(call environment,build/dist,build twine)
	rm -rf dist
	$(BIN)/python -m uv build --quiet --system-certs --out-dir dist || \
	    build/dist/bin/python -m build --outdir dist . >build/dist/log || { cat build/dist/log; exit 1; }
	build/dist/bin/twine check --strict dist/*

# Before a release: known vulnerabilities of the pinned packages, of which it asks PyPI, and what bandit says of the code.
audit: $(INSTALLED)
	@$(call environment,build/audit,bandit pip-audit)
	build/audit/bin/bandit -q -c pyproject.toml -r enode_django sample_project
	build/audit/bin/pip-audit --strict --disable-pip --no-deps -r requirements.txt

# The tests on other versions of Python, Django, PostgreSQL, Redis and the packages: make matrix ARGS="-s postgres". What this
# machine has no Python or server for is skipped. pyenv, where it is, shows all its Pythons.
matrix: $(INSTALLED)
	@[ -x build/nox/bin/nox ] || $(call environment,build/nox,nox pip uv)
	@if command -v pyenv >/dev/null; then export PYENV_VERSION="$$(pyenv versions --bare | sort -rV | paste -sd:)"; fi; \
	build/nox/bin/nox $(ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
