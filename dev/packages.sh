# shellcheck shell=sh
# What is missing on the system, with apt.

installed() {
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

needed_packages() {
  echo gcc make libc6-dev libipc-run-perl python3 python3-venv
  [ "$verb" != sqlsmith ] || echo sqlsmith
  case " $wanted " in *" spec "*) spec_packages ;; esac
  [ "$wanted" != "bench coordinators" ] || echo default-jdk-headless maven
  case "$verb $wanted " in "bench bench instructions " | "bench bench writesets " | test*" bench "*) echo valgrind ;; esac
  if [ -n "$from_source" ]; then
    echo bison flex perl bzip2
    [ "$me" != root ] || echo postgresql-common # makes the user postgres
  else
    echo "postgresql-$pg postgresql-server-dev-$pg"
  fi
}

install_packages() {
  command -v dpkg-query >/dev/null || die "only Debian and its derivatives are supported"
  missing=
  for package in $(needed_packages); do
    installed "$package" || missing="$missing $package"
  done
  [ -n "$missing" ] || return 0
  say "installing$missing"
  [ "$me" = root ] || command -v sudo >/dev/null || die "needs sudo, or run it as root"
  as_root apt-get update -qq </dev/null
  # No system-wide cluster: the demo and the tests make their own.
  no_cluster=/etc/postgresql-common/createcluster.d/pg_mip.conf
  as_root mkdir -p "${no_cluster%/*}"
  echo 'create_main_cluster = false' | as_root tee "$no_cluster" >/dev/null
  status=0
  # shellcheck disable=SC2086 # a list of words
  as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get install -qq -y --no-install-recommends $missing </dev/null >/dev/null || status=$?
  as_root rm -f "$no_cluster"
  as_root rmdir "${no_cluster%/*}" 2>/dev/null || true
  [ $status -eq 0 ] || die "apt could not install$missing"
}
