#!/bin/bash
# Builds programs of Kubernetes v1.20.2 from Debian 12's source package `kubernetes`.
#
#     build.sh WORK OUT ARCHIVE PROGRAM...
#
# WORK: a directory for everything; OUT: where the last program goes, and beside it the others; ARCHIVE: the
# URI of a Debian archive. Nothing outside WORK and OUT is touched: apt gets lists and a cache of its own, so
# neither the machine's releases nor the right to change them matter.
set -euo pipefail
work=$(realpath "$1")
out=$2
archive=$3
shift 3
cd "$work"

mkdir -p lists/partial cache/archives/partial
signed='[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]'
cat > sources.list <<LIST
deb $signed $archive bookworm main
deb-src $signed $archive bookworm main
LIST
apt=(apt-get --quiet
  -o "Dir::Etc::SourceList=$work/sources.list" -o Dir::Etc::SourceParts=/dev/null
  -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work/cache"
  -o "APT::Sandbox::User=$(id -un)")
"${apt[@]}" update
rm -rf kubernetes-*/
"${apt[@]}" source kubernetes=1.20.5+really1.20.2-1.1+deb12u1
"${apt[@]}" download golang-github-modern-go-reflect2-dev
dpkg-deb -x golang-github-modern-go-reflect2-dev_*.deb reflect2

# The vendored reflect2 predates Go 1.18 and corrupts the iteration of maps under it; 1.0.2 is right.
tree=$(echo "$work"/kubernetes-*/)
rm -rf "$tree/vendor/github.com/modern-go/reflect2"
cp -r reflect2/usr/share/gocode/src/github.com/modern-go/reflect2 \
  "$tree/vendor/github.com/modern-go/"

# As debian/rules builds it: vendored sources only, the version as the archive carries it.
export GOPATH=$work/gopath GOCACHE=$work/gocache GOPROXY=off GOFLAGS= GOTOOLCHAIN=local
export CGO_ENABLED=0 PATH=/usr/lib/go/bin:$PATH HOME=$work
mkdir -p "$GOPATH/src/k8s.io"
ln -sfn "${tree%/}" "$GOPATH/src/k8s.io/kubernetes"
cd "$GOPATH/src/k8s.io/kubernetes"
make WHAT="${*/#/cmd/}"

mkdir -p "$(dirname "$out")"
for program; do
  built=$(find _output/ -type f -name "$program" -path '*/bin/*' | head -n 1)
  "$built" --version
  place=$(dirname "$out")/$program
  [ "$program" = "${!#}" ] && place=$out
  install -m 755 "$built" "$place.fresh"
  mv "$place.fresh" "$place"
done
# Go makes its module and build caches read-only.
chmod -R u+w "$work"
