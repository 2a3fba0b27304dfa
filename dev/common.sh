# shellcheck shell=sh
# Who runs this, and where: words that every other part uses.

say() { printf '==> %s\n' "$*"; }
die() { printf 'run: %s\n' "$*" >&2; exit 1; }

me=$(id -un)
work=${PG_MIP_WORK:-/var/tmp/pg_mip-$me}
case $work in /*) ;; *) work=$PWD/$work ;; esac

# as_root COMMAND...: what changes the system
as_root() {
  if [ "$me" = root ]; then "$@"; else sudo "$@"; fi
}

# as_user COMMAND...: everything else; PostgreSQL refuses to run as root
as_user() {
  if [ "$me" = root ]; then
    setpriv --reuid=postgres --regid=postgres --init-groups \
      env HOME="$work" USER=postgres LOGNAME=postgres "$@"
  else
    "$@"
  fi
}

# ---------------------------------------------------------------- majors

# Debian's releases, and the major that each one ships
releases='bookworm 15
trixie 17
forky 18'

# codename: of this system
codename() (
  # shellcheck source=/dev/null
  [ ! -r /etc/os-release ] || . /etc/os-release
  echo "${VERSION_CODENAME:-}"
)

shipped_major() { echo "$releases" | awk -v it="$(codename)" '$1 == it { print $2 }'; }
release_of() { echo "$releases" | awk -v it="$1" '$2 == it { print $1 }'; }

# choose_server: the server to work with, from --pg and --assert. Sets pg, its
# flavour (distribution's packages, or built from source), and the flavour's folder.
choose_server() {
  pg=${pg:-$(shipped_major)}
  [ -n "$pg" ] || die "no default PostgreSQL for this system ($(codename)); say --pg N"
  from_source=$assert
  if [ "$pg" != "$(shipped_major)" ]; then from_source=yes; fi
  if [ -n "$from_source" ]; then
    flavour=$pg-assert
    prefix=$work/$flavour/postgresql
    pg_config=$prefix/bin/pg_config
  else
    flavour=$pg
    pg_config=/usr/lib/postgresql/$pg/bin/pg_config
  fi
  home=$work/$flavour
  src=$home/src
  logs=$home/log
}

# ---------------------------------------------------------------- work folder

make_work_folder() {
  if [ ! -e "$work" ]; then
    mkdir -p -m 755 "$work"
    [ "$me" != root ] || chown postgres: "$work"
  fi
  owner=$(stat -c %U "$work")
  case $owner in
    "$me" | postgres) ;;
    *) die "$work belongs to $owner; set PG_MIP_WORK" ;;
  esac
  as_user touch "$work/.pg_mip"
  as_user mkdir -p "$src" "$logs"
}

clean() {
  if [ -e "$work/.pg_mip" ]; then
    say "removing $work"
    rm -rf "$work"
  else
    say "there is no work folder at $work"
  fi
}
