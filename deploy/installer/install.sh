#!/bin/sh
# install.sh: install a release of Cognitora on Linux, or remove it. Verifies before it runs or unpacks anything.
#
#   curl -fsSLO https://github.com/cognitora/cognitora/releases/latest/download/install.sh && sh install.sh
#   sh install.sh --uninstall
#
# CGN_VERSION    version to install; unset: the newest that CGN_BASE_URL names (its file LATEST)
# CGN_BASE_URL   folder of the release's files, https://, http:// or file://; unset: the release of CGN_REPO on GitHub
# CGN_REPO       OWNER/NAME on GitHub; default cognitora/cognitora
# CGN_PREFIX     where to install; default /usr/local for root, else $HOME/.local
# CGN_PUBLIC_KEY minisign's public key: the signature of SHA256SUMS is verified by it, or nothing is installed; default the
#                key of the release that this script is from, if it was signed; empty: no signature is verified
#
# Programs go to PREFIX/bin, the rest to PREFIX/share and PREFIX/lib. As root with a PREFIX of /usr/local, /usr or below /opt, units
# are adapted to PREFIX and put where systemd finds them; nothing is started. Settings in /etc/cognitora are never touched.
set -eu
release_key='' # scripts/release writes the key of the release here
umask 022 # services run as another user than the one who installs

fail() { printf 'install.sh: %s\n' "$*" >&2; exit 1; }
say() { printf '%s\n' "$*"; }

usage() { sed -n '2,/^set -eu/p' "$0" | sed '/^set -eu/d; s/^# \{0,1\}//'; }
remove=
case ${1:-} in
'') ;;
-h|--help) usage; exit 0 ;;
--uninstall) remove=1 ;;
*) fail "there is no argument $1 (--help says what there is)" ;;
esac
[ $# -le 1 ] || fail "unexpected argument $2"

root='' units=''
[ "$(id -u)" != 0 ] || root=1
if [ -n "${CGN_PREFIX:-}" ]; then prefix=$CGN_PREFIX; elif [ -n "$root" ]; then prefix=/usr/local; else prefix=${HOME:?HOME is not set: set CGN_PREFIX}/.local; fi
case $prefix in /*) ;; *) fail "CGN_PREFIX: $prefix is not an absolute path" ;; esac
list=$prefix/share/cognitora/installed
case $root$prefix in 1/usr|1/usr/local|1/opt/*) units=1 ;; esac

# Remove the files that LIST names: only those that an installation wrote, and folders that are then empty.
remove_listed() { # LIST
	while IFS= read -r file; do
		case $file in "$prefix"/*|/etc/systemd/system/*|/etc/sysusers.d/*|/etc/tmpfiles.d/*) ;; *) continue ;; esac
		case $file in *..*) continue ;; esac
		rm -f -- "$file"
		dir=$(dirname -- "$file")
		while [ "$dir" != "$prefix" ] && [ "$dir" != / ] && rmdir -- "$dir" 2>/dev/null; do dir=$(dirname -- "$dir"); done
	done <"$1"
}
if [ -n "$remove" ]; then
	[ -f "$list" ] || fail "nothing is installed in $prefix (there is no $list)"
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	cp "$list" "$work/list"
	remove_listed "$work/list"
	rm -f -- "$list"
	rmdir -- "$prefix/share/cognitora" 2>/dev/null || :
	say "removed Cognitora from $prefix; settings and state in /etc/cognitora and /var/lib/cognitora stay"
	exit 0
fi

[ "$(uname -s)" = Linux ] || fail "there are releases for Linux only, not for $(uname -s)"
case $(uname -m) in
x86_64|amd64) platform=linux-x86_64 ;;
aarch64|arm64) platform=linux-arm64 ;;
*) fail "there is no release for $(uname -m): there are x86_64 and arm64" ;;
esac
repo=${CGN_REPO:-cognitora/cognitora}
base=${CGN_BASE_URL:-https://github.com/$repo/releases/${CGN_VERSION:+download/v$CGN_VERSION}}
[ -n "${CGN_BASE_URL:-}${CGN_VERSION:-}" ] || base=$base"latest/download"
hint=
[ -n "${CGN_BASE_URL:-}" ] || hint=": where no release is published there, set CGN_BASE_URL to the folder of a release's files (scripts/release makes them), or CGN_REPO to a fork that has releases"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

fetch() { # NAME: fetch it into $work, or fail
	case $base in
	file://*) cp -- "${base#file://}/$1" "$work/$1" 2>/dev/null || fail "$base/$1 is missing or cannot be read" ;;
	https://*|http://*)
		if command -v curl >/dev/null; then curl -fsL ${CGN_BASE_URL:+-S} --retry 3 --connect-timeout 20 -o "$work/$1" "$base/$1" || fail "$base/$1 cannot be fetched$hint"
		elif command -v wget >/dev/null; then wget -q -O "$work/$1" "$base/$1" || fail "$base/$1 cannot be fetched$hint"
		else fail "curl or wget is needed to fetch $base/$1"; fi ;;
	*) fail "CGN_BASE_URL: $base begins with neither https://, http:// nor file://" ;;
	esac
}

version=${CGN_VERSION:-}
if [ -z "$version" ]; then
	fetch LATEST
	version=$(head -n 1 "$work/LATEST")
fi
case $version in ''|*[!0-9A-Za-z.~+-]*) fail "'$version' is not a version" ;; esac
name=cognitora-$version-$platform
say "installing Cognitora $version for $platform into $prefix, from $base"
fetch "$name.tar.gz"
fetch SHA256SUMS

# ---- verify, before anything is unpacked ----
# minisign's files: a key is "Ed", 8 bytes of its id, 32 bytes; a signature is "ED" (of the BLAKE2b of the file) or "Ed" (of the
# file), 8 bytes of the key's id, 64 bytes. OpenSSL takes the key behind the 12 bytes of RFC 8410.
signed_openssl() { # KEY
	cd "$work"
	printf %s "$1" | base64 -d >key && sed -n 2p SHA256SUMS.minisig | base64 -d >signature || return 1
	[ "$(wc -c <key)" = 42 ] && [ "$(wc -c <signature)" = 74 ] || return 1
	[ "$(head -c 10 key | tail -c 8 | od -An -tx1)" = "$(head -c 10 signature | tail -c 8 | od -An -tx1)" ] || return 1
	{ printf '\060\052\060\005\006\003\053\145\160\003\041\000'; tail -c 32 key; } >key.der
	tail -c 64 signature >signature.raw
	case $(head -c 2 signature) in
	ED) openssl dgst -blake2b512 -binary SHA256SUMS >message ;;
	Ed) cp SHA256SUMS message ;;
	*) return 1 ;;
	esac
	openssl pkeyutl -verify -pubin -keyform DER -inkey key.der -rawin -in message -sigfile signature.raw
}
public_key=${CGN_PUBLIC_KEY-$release_key}
if [ -n "$public_key" ]; then
	fetch SHA256SUMS.minisig
	if command -v minisign >/dev/null; then
		minisign -Vq -P "$public_key" -m "$work/SHA256SUMS" -x "$work/SHA256SUMS.minisig" >/dev/null 2>&1
	elif command -v openssl >/dev/null; then
		(signed_openssl "$public_key") >/dev/null 2>&1
	else
		fail "minisign or openssl is needed to verify the signature (CGN_PUBLIC_KEY= verifies none): nothing was installed"
	fi || fail "the signature of SHA256SUMS is not by $public_key: nothing was installed"
fi
command -v sha256sum >/dev/null || fail "sha256sum is missing (coreutils)"
want=$(awk -v f="$name.tar.gz" '$2 == f || $2 == "*" f { print $1 }' "$work/SHA256SUMS")
have=$(sha256sum "$work/$name.tar.gz" | cut -d' ' -f1)
[ -n "$want" ] || fail "SHA256SUMS does not name $name.tar.gz: nothing was installed"
[ "$want" = "$have" ] || fail "$name.tar.gz has the checksum $have, SHA256SUMS says $want: nothing was installed"
tar -tzf "$work/$name.tar.gz" >"$work/names" 2>/dev/null || fail "$name.tar.gz is not an archive: nothing was installed"
if grep -q -v -e "^$name/" "$work/names" || grep -q -e '\.\.' "$work/names"; then
	fail "$name.tar.gz has files outside of $name/: nothing was installed"
fi
mkdir "$work/new"
tar -xzf "$work/$name.tar.gz" -C "$work/new" --no-same-owner || fail "$name.tar.gz cannot be unpacked: nothing was installed"
new=$work/new/$name
"$new/bin/cgn-ctl" --version >/dev/null 2>&1 ||
	fail "the programs of $name do not run here (glibc 2.36 or newer is needed): nothing was installed"

# ---- install: each file is replaced at once, so a running program keeps its own ----
mkdir -p "$prefix/share/cognitora" 2>/dev/null || :
[ -w "$prefix/share/cognitora" ] || fail "$prefix cannot be written: run as root, or set CGN_PREFIX to a folder of yours"
old=
[ ! -f "$list" ] || { old=$(sed -n 's/^# version //p' "$list"); cp "$list" "$work/before"; }
: >"$work/list"
put() { # SOURCE TARGET
	mkdir -p "$(dirname -- "$2")" || fail "$(dirname -- "$2") cannot be made"
	printf '%s\n' "$2" "$2.new" >>"$list"
	cp -p -- "$1" "$2.new" || fail "$2.new cannot be written: is the disk full?"
	mv -f -- "$2.new" "$2" || fail "$2 cannot be written"
	printf '%s\n' "$2" >>"$work/list"
}
(cd "$new" && find . -type f | sed 's,^\./,,' | LC_ALL=C sort) >"$work/files"
# The list grows with each file, so that an interrupted installation can be repeated or removed.
[ -n "$old" ] || printf '# version %s (not finished)\n' "$version" >"$list"
while IFS= read -r file; do
	case $file in
	LICENSE|README.md|CHANGELOG.md) put "$new/$file" "$prefix/share/doc/cognitora/$file" ;;
	lib/systemd/system/*|lib/sysusers.d/*|lib/tmpfiles.d/*)
		if [ -z "$units" ]; then put "$new/$file" "$prefix/$file"; continue; fi
		sed "s,/usr/bin/cgn-,$prefix/bin/cgn-,g" "$new/$file" >"$work/unit"
		case $file in
		lib/systemd/system/*) put "$work/unit" "/etc/systemd/system/${file##*/}" ;;
		*) put "$work/unit" "/etc/${file#lib/}" ;;
		esac ;;
	*) put "$new/$file" "$prefix/$file" ;;
	esac
done <"$work/files"
{ printf '# version %s\n' "$version"; cat "$work/list"; } >"$list.new" && mv -f -- "$list.new" "$list"
# Files of the version that was there and is gone.
if [ -n "$old" ]; then
	grep -v '^#' "$work/before" | grep -v -x -F -f "$work/list" >"$work/gone" || :
	remove_listed "$work/gone"
	say "replaced $old"
fi
say "installed $("$prefix/bin/cgn-ctl" --version). Programs are in $prefix/bin."
case :${PATH:-}: in *:"$prefix/bin":*) ;; *) say "Add it to your PATH: export PATH=\"$prefix/bin:\$PATH\"" ;; esac
if [ -n "$units" ] && [ -d /run/systemd/system ]; then
	say "Then: systemd-sysusers && systemd-tmpfiles --create cognitora.conf && systemctl daemon-reload, and cgn-ctl --help"
else
	say "Begin with: cgn-ctl --help"
fi
