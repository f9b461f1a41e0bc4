#!/bin/sh
# Refreshes data/: the country database of its npm package, by the ordinary
# npm client. The old file stays unless the new one is whole; whether weir
# understands it is for the tests to say (`make geo-update` runs them).
set -eu

package=@ip-location-db/geo-whois-asn-country-mmdb
file=geo-whois-asn-country.mmdb
data=$(cd "$(dirname "$0")/../data" && pwd)

for program in npm xz tar; do
	command -v $program >/dev/null || {
		echo "make geo-update: $program is missing: apt-get install npm xz-utils tar" >&2
		exit 1
	}
done
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
cd "$dir"
npm pack --silent $package >/dev/null
tar xzf ./*.tgz "package/$file" package/package.json
version=$(sed -n 's/^ *"version": "\([0-9.]*\)".*/\1/p' package/package.json)
test -n "$version" || {
	echo "make geo-update: the package names no version" >&2
	exit 1
}
# No larger dictionary than the file: whoever unpacks it needs that memory.
xz -c --lzma2=preset=9e,dict=8MiB "package/$file" >"$data/.new"
mv -f "$data/.new" "$data/$file.xz"
sed -i "s/^| version | .*/| version | $version |/" "$data/README.md"
echo "data/$file.xz is version $version of $package"
