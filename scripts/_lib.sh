# Shared by scripts/up, scripts/test and scripts/run/*: messages, packages, the build. Sourced, not run.
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() { printf '%s\n' "$*"; }
step() { printf '==> %s\n' "$*"; }
die() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; exit 1; }

as_root() {
	if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null; then sudo "$@"; else
		die "packages are missing and this user is not root and has no sudo; as root run: $*"
	fi
}

codename() { . /etc/os-release && printf '%s\n' "${VERSION_CODENAME:-unknown}"; }

# The packages of the sets $@ for this release that are not installed.
missing_packages() {
	local here set name on command pkgs=()
	here=$(codename)
	while read -r set name on; do
		case $set in ''|'#'*) continue ;; esac
		case " $* " in *" $set "*) ;; *) continue ;; esac
		command=
		case $on in *cmd=*) command=${on##*cmd=} on=${on%%cmd=*} ;; esac
		[ -z "$command" ] || ! command -v "$command" >/dev/null || continue
		[ -z "${on// /}" ] || case " $on " in *" $here "*) ;; *) continue ;; esac
		pkgs+=("$name")
	done < "$ROOT/scripts/packages"
	for name in "${pkgs[@]}"; do
		dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null | grep -qx installed || printf '%s\n' "$name"
	done
}

install_packages() {
	command -v apt-get >/dev/null || die "this script installs with apt; on another system install what scripts/packages lists, then build with meson"
	case $(codename) in
	bookworm|trixie) ;;
	*) say "note: tested on Debian 12 and 13; this is $(codename)" ;;
	esac
	local want
	mapfile -t want < <(missing_packages "$@")
	[ "${#want[@]}" = 0 ] && return 0
	step "installing with apt: ${want[*]}"
	as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq update || die "apt-get update failed: is there a network, and a Debian mirror in /etc/apt?"
	as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install "${want[@]}" >/dev/null ||
		die "apt-get could not install: ${want[*]}"
	mapfile -t want < <(missing_packages "$@")
	[ "${#want[@]}" = 0 ] || die "still missing after apt-get: ${want[*]}"
}

# build_tree DIR MESON-OPTION...: configure once, then compile; the compiler's words are shown only on failure.
build_tree() {
	local dir=$1 log=$1/build.log
	shift
	mkdir -p "$dir"
	if [ ! -f "$dir/build.ninja" ]; then
		meson setup "$dir" "$ROOT" "$@" >"$log" 2>&1 || { tail -n 20 "$log" >&2; die "meson setup failed; the whole log: $log"; }
	fi
	ninja -C "$dir" >"$log" 2>&1 || { grep -E 'error|FAILED' "$log" | head -n 20 >&2; die "the build failed; the whole log: $log"; }
	mkdir -p "$dir/bin"
	ln -sf "$dir"/src/*/cgn-*[!p] "$dir/bin/"
}
