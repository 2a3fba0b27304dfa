# shellcheck shell=sh
# The Python environment of library, demo, benches and their tests.

venv=$work/venv
python=${PYTHON:-/usr/bin/python3}

hash_of() { # hash_of FILE-OR-FOLDER..., without what tools leave there
  find "$@" -type f ! -name '*.pyc' ! -path '*/build/*' ! -path '*.egg-info/*' ! -path '*/.*_cache/*' -print |
    LC_ALL=C sort | xargs sha256sum | sha256sum
}

# Dependencies are installed once per pyproject.toml, pgmip itself whenever it changed
# (without network).
use_python() {
  needs=$($python --version; sha256sum python/pyproject.toml dev/python.sh)
  if [ "$(cat "$venv/needs" 2>/dev/null)" != "$needs" ]; then
    say "installing Python packages into $venv"
    as_user rm -rf "$venv"
    as_user "$python" -m venv "$venv"
    as_user "$venv/bin/pip" install -q --disable-pip-version-check \
      'setuptools>=71' wheel './python[cli,demo,docs,http,test]'
    echo "$needs" | as_user tee "$venv/needs" >/dev/null
  fi
  code=$(hash_of python)
  if [ "$(cat "$venv/code" 2>/dev/null)" != "$code" ]; then
    as_user "$venv/bin/pip" install -q --disable-pip-version-check --no-deps \
      --no-build-isolation --no-index --force-reinstall ./python
    echo "$code" | as_user tee "$venv/code" >/dev/null
  fi
  case $PATH in "$venv"/*) ;; *) PATH=$venv/bin:$PATH ;; esac
  export PATH PYTHONDONTWRITEBYTECODE=1 PGMIP_REQUIRE_INTEGRATION=1
}
