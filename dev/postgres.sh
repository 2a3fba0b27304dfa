# shellcheck shell=sh
# PostgreSQL from Debian's source package, with assertions, in the work folder.
# Kept there: it is built once.

# source_apt TOOL ARGUMENT...: apt with lists of its own; the system's stay as they are.
# The mirror may lag or be a snapshot: signatures are checked, their age is not.
source_apt() {
  tool=$1
  shift
  as_user "apt-$tool" -q \
    -o Dir::State="$apt/state" -o Dir::State::status=/dev/null -o Dir::Cache="$apt/cache" \
    -o Dir::Etc::sourcelist="$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null \
    -o Acquire::Languages=none -o Acquire::Check-Valid-Until=false "$@" </dev/null
}

# site_of SUITE: where this system gets a suite of its own from
site_of() {
  # shellcheck disable=SC2016 # apt's variables
  apt-get indextargets --format '$(CODENAME) $(RELEASE) $(SITE)' |
    awk -v it="$1" '$1 == it || $2 == it { print $NF; exit }'
}

# The places where the newest source package of a release may be
list_suites() {
  release=$(release_of "$pg")
  [ -n "$release" ] || die "no Debian release is known that ships PostgreSQL $pg"
  site=$(site_of "$(codename)")
  [ -n "$site" ] || die "apt has no source for $(codename)"
  echo "$site $release"
  echo "$site $release-updates"
  site=$(site_of "$(codename)-security")
  [ -z "$site" ] || echo "$site $release-security"
}

# source_versions: what the suites list, the newest first
source_versions() {
  source_apt cache showsrc --only-source "postgresql-$pg" |
    awk '$1 == "Version:" { print $2 }' | sort -urV
}

# download_source: the newest version that is there; a mirror's lists may be ahead of
# its files
download_source() {
  for version in $(source_versions); do
    if (cd "$home/source" && source_apt get source --download-only "postgresql-$pg=$version"); then
      return
    fi
    as_user find "$home/source" -mindepth 1 -delete
  done
  return 1
}

# earlier_minors: of the listed versions. A mirror that has not got a release's files yet
# still has those of the one before, though no list names them.
earlier_minors() {
  source_versions | awk -F'[.-]' '{
    packaging = substr($0, length($1 "." $2) + 1)
    for (minor = $2 - 1; minor >= 0 && minor >= $2 - 3; minor--) print $1 "." minor packaging }'
}

# download_earlier: such a one, vouched for by the signature of the Debian developer who
# has packaged it
download_earlier() {
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends debian-keyring </dev/null
  pool=$(site_of "$(codename)")/pool/main/p/postgresql-$pg
  for version in $(earlier_minors); do
    dsc=$home/source/postgresql-${pg}_$version.dsc
    as_user /usr/lib/apt/apt-helper download-file "$pool/${dsc##*/}" "$dsc" || continue
    as_user gpgv --keyring /usr/share/keyrings/debian-keyring.gpg --output "$dsc.signed" "$dsc" || continue
    # shellcheck disable=SC2046 # two words
    set -- $(awk '/^[^ ]/ { part = $1 }
      part == "Checksums-Sha256:" && $3 ~ /^postgresql-'"$pg"'_[0-9.]+\.orig\.tar\.[a-z0-9]+$/ { print $1, $3 }' "$dsc.signed")
    [ $# -eq 2 ] || continue
    ! as_user /usr/lib/apt/apt-helper download-file "$pool/$2" "$home/source/$2" "SHA256:$1" || return 0
    as_user find "$home/source" -mindepth 1 -delete
  done
  return 1
}

fetch_postgres() {
  say "getting the source of PostgreSQL $pg"
  apt=$home/apt
  as_user rm -rf "$apt" "$home/source"
  as_user mkdir -p "$apt/state/lists/partial" "$apt/cache/archives/partial" "$home/source"
  suites=$(list_suites)
  echo "$suites" | while read -r site suite; do
    echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $site $suite main"
  done | as_user tee "$apt/sources.list" >/dev/null
  # a release need not have all of the suites: it is the package that counts
  source_apt get update >"$logs/apt.log" 2>&1 || true
  { download_source || download_earlier; } >>"$logs/apt.log" 2>&1 ||
    { tail "$logs/apt.log"; die "apt cannot get a source package postgresql-$pg"; }
  as_user rm -rf "$apt"
}

# build_postgres: afterwards $prefix has the server, and $home/build its objects
build_postgres() {
  recipe=$(sha256sum <"$src/dev/build-postgres")
  if [ "$(cat "$home/recipe" 2>/dev/null)" = "$recipe" ]; then return; fi
  ls "$home"/source/*.orig.tar.* >/dev/null 2>&1 || fetch_postgres
  say "building PostgreSQL $pg with assertions (once, some minutes)"
  as_user sh "$src/dev/build-postgres" "$home"/source/*.orig.tar.* "$home/build" "$prefix" \
    >"$logs/postgresql.log" 2>&1 || { tail -n 40 "$logs/postgresql.log"; die "the build has failed"; }
  echo "$recipe" | as_user tee "$home/recipe" >/dev/null
}
