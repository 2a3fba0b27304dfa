# shellcheck shell=sh
# The extension: sources are copied to the work folder and built there.

# The files of the clone, one per line: tracked and new ones, not the ignored.
list_sources() {
  git -c safe.directory="$top" ls-files -co --exclude-standard 2>/dev/null ||
    find . -type f ! -path './.git/*' ! -name '*.pyc' ! -name '*.o' | sed 's,^\./,,'
}

# differs FILE: from the copy of it in the work folder?
differs() {
  ! cmp -s "$1" "$src/$1" || { if [ -x "$1" ]; then [ ! -x "$src/$1" ]; else [ -x "$src/$1" ]; fi; }
}

# What differs is copied, and is new then, whatever its time is in this clone: another one may have been built here since.
# Files that went are removed.
copy_sources() (
  cd "$top"
  now=$(mktemp)
  changed=$(mktemp)
  trap 'rm -f "$now" "$changed"' EXIT
  list_sources | LC_ALL=C sort | while IFS= read -r file; do
    [ -f "$file" ] || continue
    printf '%s\n' "$file"
    ! differs "$file" || printf '%s\n' "$file" >&3
  done >"$now" 3>"$changed"
  tar -cf - -T "$changed" | as_user tar -C "$src" -xmf - --no-same-owner
  if [ -f "$home/files" ]; then
    LC_ALL=C comm -13 "$now" "$home/files" | while IFS= read -r gone; do
      as_user rm -f "$src/$gone"
    done
  fi
  as_user tee "$home/files" <"$now" >/dev/null
)

# Is every file that `make install` would put there already there and the same?
is_installed() {
  cmp -s "$src/pg_mip.so" "$libdir/pg_mip.so" || return 1
  for file in "$src"/pg_mip.control "$src"/sql/*.sql; do
    cmp -s "$file" "$sharedir/extension/${file##*/}" || return 1
  done
}

build_extension() {
  bindir=$($pg_config --bindir)
  libdir=$($pg_config --pkglibdir)
  sharedir=$($pg_config --sharedir)
  say "building the extension for $($pg_config --version)${from_source:+ with assertions}"
  as_user make -s -C "$src" PG_CONFIG="$pg_config" with_llvm=no WERROR=1
  is_installed && return
  say "installing it into $libdir"
  install=as_root
  [ -z "$from_source" ] || install=as_user
  $install make -s -C "$src" PG_CONFIG="$pg_config" with_llvm=no install >/dev/null
}

# prepare: from nothing to an installed extension; the rest runs in $src
prepare() {
  choose_server
  install_packages
  make_work_folder
  copy_sources
  cd "$src"
  [ -z "$from_source" ] || build_postgres
  [ -x "$pg_config" ] || die "$pg_config is missing"
  build_extension
  export PG_CONFIG="$pg_config" PATH="$bindir:$PATH" LC_ALL=C.UTF-8
}
