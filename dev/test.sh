# shellcheck shell=sh
# The suites: each writes a log of its own and is counted.

passed=0
failed=0

# piece NAME COUNTER COMMAND...: runs a suite into a log of its own and adds up what
# COUNTER, given the log, prints: "PASSED FAILED". A suite that fails without a failed
# test, or runs no test at all, counts as one failure.
piece() {
  name=$1 counter=$2
  shift 2
  log=$logs/$name.log
  printf '==> %-10s ' "$name"
  began=$(date +%s)
  status=0
  as_user rm -f "$src/regression.diffs" "$src/output_iso/regression.diffs"
  # a shell's background jobs ignore SIGINT, and so would what the suites interrupt
  # shellcheck disable=SC2016 # expanded by the inner shell
  as_user env --default-signal=INT sh -c 'log=$1; shift; exec "$@" >"$log" 2>&1' sh "$log" "$@" </dev/null || status=$?
  # shellcheck disable=SC2046 # two words
  set -- $("$counter" "$log" $status)
  good=${1:-0} bad=${2:-0}
  if [ "$bad" -eq 0 ] && { [ $status -ne 0 ] || [ "$good" -eq 0 ]; }; then bad=1; fi
  passed=$((passed + good))
  failed=$((failed + bad))
  echo "$good passed, $bad failed ($(($(date +%s) - began)) s)"
  [ "$bad" -eq 0 ] || show_failure "$log"
}

show_failure() {
  echo "---- $1 (exit status $status)"
  grep -v '^ok ' "$1" | tail -n 200
  for diffs in "$src/regression.diffs" "$src/output_iso/regression.diffs"; do
    [ ! -s "$diffs" ] || { echo "---- $diffs"; head -n 300 "$diffs"; }
  done
  echo "----"
}

sum_up() {
  echo "$passed passed, $failed failed"
  [ "$failed" -eq 0 ]
}

# ---------------------------------------------------------------- counters

# pg_regress before and after PostgreSQL 16 speaks differently
count_regress() {
  echo "$(grep -cE '^(test|    ) +.*\.\.\. ok |^ok [0-9]' "$1") \
    $(grep -cE '^(test|    ) +.*\.\.\. FAILED|^not ok [0-9]' "$1")"
}

count_tap() {
  awk -F'[ =,/]+' '/^Files=/ { all = $4 }
    /Failed [0-9]+\/[0-9]+ subtests/ { for (i = 1; i < NF; i++) if ($i == "Failed") bad += $(i + 1) }
    END { print all - bad, bad + 0 }' "$1"
}

count_pytest() {
  tail -n 1 "$1" | awk '{ for (i = 2; i <= NF; i++) {
      if ($i ~ /^passed/) good = $(i - 1)
      if ($i ~ /^(failed|error)/) bad += $(i - 1) } }
    END { print good + 0, bad + 0 }'
}

count_one() {
  if [ "$2" -eq 0 ]; then echo 1 0; else echo 0 1; fi
}

# ---------------------------------------------------------------- a server

start_server() {
  server=$home/server
  stop_server
  as_user rm -rf "$server"
  as_user mkdir -p "$server"
  # a socket's path is short, the work folder's perhaps not
  socket=$(as_user mktemp -d /tmp/pg_mip.XXXXXX)
  as_user initdb -D "$server/data" -U "$me" -A trust --locale=C.UTF-8 --no-sync \
    >"$logs/initdb.log" 2>&1 </dev/null || die "initdb failed, see $logs/initdb.log"
  printf '%s\n' "listen_addresses = ''" "unix_socket_directories = '$socket'" \
    "shared_preload_libraries = 'pg_mip'" 'max_prepared_transactions = 100' \
    'fsync = off' 'jit = off' 'deadlock_timeout = 100ms' | as_user tee -a "$server/data/postgresql.conf" >/dev/null
  as_user pg_ctl -D "$server/data" -l "$logs/server.log" -w start >/dev/null </dev/null ||
    { tail "$logs/server.log"; die "the server for the tests does not start"; }
  export PGHOST="$socket" PGPORT=5432 PGUSER="$me"
}

stop_server() {
  if [ -f "$home/server/data/postmaster.pid" ]; then
    as_user pg_ctl -D "$home/server/data" -m immediate stop >/dev/null 2>&1 || true
  fi
  [ -z "${socket:-}" ] || as_user rm -rf "$socket"
  socket=
  unset PGHOST PGPORT PGUSER
}

# ---------------------------------------------------------------- suites

all_suites='layers regress isolation tap ruff mypy pytest docs demo histories serializable spec soak faults bench'
other_suites='indent jetstream'

installcheck() { # installcheck NAME COUNTER MAKE-VARIABLE...
  name=$1 counter=$2
  shift 2
  piece "$name" "$counter" make -s PG_CONFIG="$pg_config" installcheck "$@"
}

pytests() { # pytests NAME ARGUMENT...; a test that hangs fails, and says where
  name=$1
  shift
  piece "$name" count_pytest python -m pytest -q -p no:cacheprovider --timeout 300 "$@"
}

suite_layers() {
  piece layers count_one python3 dev/layers src
  piece invariants count_one python3 dev/invariants
}

c_sources() { find src -name '*.[ch]' | LC_ALL=C sort; }

# With --pg 17 and later, whose source has the tools
suite_indent() {
  # shellcheck disable=SC2046 # a list of words
  piece indent count_one dev/indent --check "${from_source:+$home/build}" $(c_sources)
}
suite_regress() { start_server; installcheck regress count_regress ISOLATION= TAP_TESTS=; stop_server; }
suite_isolation() { start_server; installcheck isolation count_regress REGRESS= TAP_TESTS=; stop_server; }
# Mostly these wait, for servers to start. The longest are begun first, and then the largest: none should be left to run
# alone in the end.
# shellcheck disable=SC2012 # names of ours
suite_tap() {
  tests=$({ printf 'test/t/%s.pl\n' 012_steps 014_replay 038_like_heap; ls -S test/t/*.pl; } | awk '!seen[$0]++' | tr '\n' ' ')
  installcheck tap count_tap REGRESS= ISOLATION= PROVE_TESTS="$tests" PROVE_FLAGS='-j6 --timer'
}
suite_ruff() {
  use_python
  piece ruff count_one sh -c \
    'ruff check --config python/pyproject.toml dev/layers dev/invariants demo examples faults docs bench workload test/postgres test/postgres/run test/histories test/histories/run test/serializable test/serializable/run test/sqlsmith/run spec spec/run && cd python && ruff check .'
}
suite_mypy() { use_python; piece mypy count_one mypy --config-file python/pyproject.toml python/pgmip demo examples faults bench workload; }
# Mostly these wait: for a time-out, or a deadline. Each worker has clusters of its own, and a file's tests stay in order.
suite_pytest() {
  use_python
  pytests pytest -n 3 --dist loadfile --no-loadscope-reorder python/tests
}
# The contract of a replicated site's log, kept by NATS servers
suite_jetstream() {
  use_python
  use_nats
  pytests jetstream python/tests/test_jetstream_address.py python/tests/test_replica_log.py \
    python/tests/test_jetstream_cli.py python/tests/test_jetstream_log.py -k jetstream
}
suite_docs() { use_python; pytests docs docs/tests; }
suite_demo() { use_python; pytests demo demo/tests; }
suite_histories() { use_python; piece histories count_one test/histories/run "${HISTORIES:-1000}"; }
suite_serializable() {
  use_python
  piece serializable count_one test/serializable/run "${HISTORIES:-1000}"
  piece serializable-across count_one test/serializable/run --across "${HISTORIES:-1000}"
}
suite_soak() { use_python; piece soak count_one test/soak/run "${SOAK_SECONDS:-60}"; }
suite_faults() {
  use_python
  pytests faults-own faults/tests
  piece faults count_pytest python -m faults --work "$home/faults" --minutes "${FAULTS_MINUTES:-1}"
  piece faults-replicated count_pytest python -m faults --replicated --work "$home/faults" --minutes "${FAULTS_MINUTES:-1}"
}

suite_bench() {
  use_python
  pytests bench-own bench/tests workload/tests
  piece bench-commit count_one python -m bench.commit --quick --out "$home/bench"
  piece bench-tpcw count_one python -m bench.tpcw --quick --out "$home/bench/tpcw"
  piece bench-ssi count_one python -m bench.ssi --quick --out "$home/bench"
  piece bench-writesets count_one python -m bench.writesets --quick --out "$home/bench"
  piece bench-replicated count_one python -m bench.replicated --quick --only application,loss --out "$home/bench"
}

run_tests() { # those in $wanted
  trap stop_server EXIT
  trap 'exit 129' HUP
  trap 'exit 130' INT
  trap 'exit 143' TERM
  for suite in $wanted; do
    "suite_$suite"
  done
  sum_up
}

# What takes longer, in the foreground: random histories, sqlsmith's statements
histories() { use_python; as_user test/histories/run "$@"; }
sqlsmith() { use_python; as_user test/sqlsmith/run "$@"; }

faults() {
  use_python
  case " $*" in *jetstream*) use_nats ;; esac
  as_user "$venv/bin/python" -m faults --work "$home/faults" "$@"
}

# Formats the clone's src/
indent() {
  # shellcheck disable=SC2046 # a list of words
  as_user dev/indent "$home/build" $(c_sources)
  for file in $(c_sources); do
    cmp -s "$file" "$top/$file" || { cat "$file" >"$top/$file"; echo "$file"; }
  done
}

# PostgreSQL's own suites, on the server that was built from source
test_postgres() {
  use_python
  as_user rm -rf "$home/suites"
  piece postgres count_regress test/postgres/run "$home/build" "$home/suites"
  sum_up
}
