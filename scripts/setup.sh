# Sourced by run and test, in the repository's root: makes .venv what requirements.lock says, and where
# with_tests=yes, requirements-test.lock as well (what only the checks need).
#
# Needs Python 3.11 or newer and pip (or a Python that brings pip). Every package is checked against the
# lock's hashes. Where nothing has changed it does nothing, in a few milliseconds. All it says goes to
# standard error.

say() { printf '%s\n' "$*" >&2; }

fail() {
    say "error: $*"
    exit 1
}

find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3.14 python3.13 python3.12 python3.11 python3 python; do
        [ -n "$candidate" ] || continue
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            printf '%s' "$candidate"
            return
        fi
    done
    fail "expected Python 3.11 or newer; found $(python3 --version 2>&1 || true)." \
        "Install one, or name it: PYTHON=/path/to/python3.12 ./run"
}

# What .venv was made of: the lock, the project's file, where it lies, and its Python.
wanted_state() {
    cat requirements.lock pyproject.toml scripts/link.py | cksum
    pwd
    .venv/bin/python -c 'import sys; print(sys.version)' 2>/dev/null || echo none
}

# The same of what the checks need besides.
wanted_tests_state() {
    cat .venv/set-up requirements-test.lock | cksum
}

# pip for .venv: its own, or another Python's where this one has no ensurepip (Debian without python3-venv).
pip() {
    local options=(--disable-pip-version-check --no-input)
    if .venv/bin/python -m pip --version >/dev/null 2>&1; then
        .venv/bin/python -m pip "${options[@]}" "$@"
    else
        "$python" -m pip --python .venv/bin/python "${options[@]}" "$@"
    fi
}

make_environment() {
    rm -rf .venv
    if "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        "$python" -m venv .venv >&2 || fail "expected '$python -m venv .venv' to work; it didn't (see above)"
    elif "$python" -m pip --version >/dev/null 2>&1; then
        "$python" -m venv --without-pip .venv >&2 || fail "expected '$python' to make an environment;" \
            "its module venv is missing. On Debian or Ubuntu: apt install python3-venv"
    else
        fail "expected pip beside $python; found neither pip nor ensurepip." \
            "On Debian or Ubuntu: apt install python3-venv"
    fi
}

set_up() {
    local python
    [ -f .venv/set-up ] && [ "$(wanted_state)" = "$(cat .venv/set-up)" ] && return
    if ! .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        python=$(find_python)
        say "[1/5] making .venv with $("$python" --version)"
        make_environment
    fi
    python=${python:-.venv/bin/python}
    install_lock "[2/5]" requirements.lock "some 550 MB to fetch, 1.3 GB on disk"
    say "[3/5] linking the project into .venv"
    .venv/bin/python scripts/link.py
    say "[4/5] compiling kernels (once for all clones with the same ones)"
    .venv/bin/python -c 'from penstock.cli.pipelines.compiling import compile_kernels; compile_kernels()' || fail \
        "expected penstock's kernels to compile; it failed (see above)"
    say "[5/5] archiving Spark's classes, so that it starts sooner (once)"
    .venv/bin/python -m penstock.cli prepare || say "continuing without it"
    wanted_state >.venv/set-up
}

install_lock() {
    local quiet=--quiet
    [ -t 2 ] && quiet=--progress-bar=on
    say "$1 installing $(grep -c '^[a-z].*==' "$2") packages of $2 ($3, once)"
    # Not compiled to bytecode: that takes some 20 s of processor time, and most modules are never imported.
    pip install "$quiet" --no-compile --require-hashes --no-deps -r "$2" >&2 || fail \
        "expected pip to install $2; it failed (see above). Check the network and run" \
        "this again: what was fetched is kept"
}

set_up_tests() {
    [ "${with_tests:-no}" = yes ] || return 0
    [ -f .venv/set-up-tests ] && [ "$(wanted_tests_state)" = "$(cat .venv/set-up-tests)" ] && return
    local python=.venv/bin/python
    install_lock "[tests]" requirements-test.lock "1.2 GB on disk"
    wanted_tests_state >.venv/set-up-tests
}

# One at a time: ./run and ./test may be started together.
if command -v flock >/dev/null 2>&1; then
    exec 9>.set-up.lock
    flock 9
    set_up
    set_up_tests
    exec 9>&-
else
    set_up
    set_up_tests
fi
