# Shared by scripts/up, scripts/test and scripts/run/*: messages, packages, the build. Sourced, not run.
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() { printf '%s\n' "$*"; }
step() { printf '==> %s\n' "$*"; }
die() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; exit 1; }

# Print the comment at the head of the running script, which is its help.
script_help() { awk 'NR == 1 || /^# SPDX/ { next } !/^#/ { exit } { sub(/^# ?/, ""); print }' "$0"; }

# take_help "FLAG..." MOST ARG...: answer --help; refuse (exit 2) flags that the script does not know, and more than MOST words.
take_help() {
	local known=" $1 " most=$2 words=0 arg
	shift 2
	for arg in "$@"; do
		case $arg in
		-h|--help) script_help; exit 0 ;;
		-*) case $known in *" $arg "*) ;; *) refuse_usage "there is no flag $arg" ;; esac ;;
		*) words=$((words + 1)); [ "$words" -le "$most" ] || refuse_usage "unexpected argument '$arg'" ;;
		esac
	done
}
refuse_usage() { printf '%s: %s\n\n' "$(basename "$0")" "$1" >&2; script_help >&2; exit 2; }

as_root() {
	if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null; then sudo "$@"; else
		die "packages are missing and this user is not root and has no sudo; as root run: $*"
	fi
}

codename() { . /etc/os-release && printf '%s\n' "${VERSION_CODENAME:-unknown}"; }

# Print the packages of the sets $@ for this release that are not installed, or too old: NAME, or NAME/SUITE for another suite.
missing_packages() {
	local here set name on command suite least only word version
	here=$(codename)
	while read -r set name on; do
		case $set in ''|'#'*) continue ;; esac
		case " $* " in *" $set "*) ;; *) continue ;; esac
		command='' suite='' least='' only=''
		for word in $on; do
			case $word in cmd=*) command=${word#cmd=} ;; from=*) suite=/${word#from=} ;; min=*) least=${word#min=} ;; *) only+=" $word" ;; esac
		done
		[ -z "$command" ] || ! command -v "$command" >/dev/null || continue
		[ -z "$only" ] || case "$only " in *" $here "*) ;; *) continue ;; esac
		version=$(dpkg-query -W -f '${db:Status-Status} ${Version}' "$name" 2>/dev/null) || version=
		case $version in "installed "*) [ -n "$least" ] && dpkg --compare-versions "${version#* }" lt "$least" || continue ;; esac
		printf '%s\n' "$name$suite"
	done < "$ROOT/scripts/packages"
}

# Add suite $1 (bookworm-backports) to apt's sources, from the mirror of this release. No installed package changes: apt prefers
# the release's own versions.
know_suite() {
	local known site
	known=$(apt-get indextargets --format '$(CODENAME) $(SITE)' 'Created-By: Packages')
	! grep -q "^$1 " <<<"$known" || return 0
	site=$(awk -v c="$(codename)" '$1 == c { print $2; exit }' <<<"$known")
	[ -n "$site" ] || die "apt knows no mirror of $(codename): is there one in /etc/apt?"
	step "adding $1 to apt's sources: /etc/apt/sources.list.d/cognitora-$1.list"
	printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n' "$site" "$1" |
		as_root tee "/etc/apt/sources.list.d/cognitora-$1.list" >/dev/null
}

# apt_install [-t SUITE] PACKAGE...: install, show how far it is, and start and enable no service: who installs for a test wants no etcd, Redis,
# nginx or sshd on the machine. Services that were there before stay as they are.
apt_install() {
	local before new
	before=$(installed_packages)
	LC_ALL=C apt-get --assume-no --no-install-recommends install "$@" 2>/dev/null |
		sed -nE 's/^(Need to get .*|After this operation, .*)/    \1/p' || :
	as_root env DEBIAN_FRONTEND=noninteractive sh -c "$APT_WITHOUT_SERVICES" apt-get "$@" > >(apt_steps) || die "apt-get could not install: $*"
	new=$(comm -13 <(printf '%s\n' "$before") <(installed_packages))
	[ -n "$new" ] || return 0
	# shellcheck disable=SC2046,SC2086
	set -- $(for unit in $(dpkg -L $new 2>/dev/null | sed -nE 's|^(/usr)?/lib/systemd/system/([^/@]+\.(service\|socket\|timer\|path))$|\2|p' | sort -u); do
		! compgen -G "/etc/systemd/system/*.wants/$unit" >/dev/null || printf '%s\n' "$unit"
	done)
	[ $# = 0 ] || ! command -v systemctl >/dev/null || as_root systemctl -q disable "$@" >/dev/null 2>&1 || say "note: could not disable: $*"
	# shellcheck disable=SC2086
	say "    installed $(wc -w <<<"$new") packages, $(dpkg-query -W -f '${Installed-Size}\n' $new | awk '{ s += $1 } END { printf "%d", s / 1024 }') MB${1:+; not started, and off at boot: $*}"
}
installed_packages() { dpkg-query -W -f '${db:Status-Status} ${binary:Package}\n' | sed -n 's/^installed //p' | sort; }

# What root runs: policy-rc.d forbids the packages' scripts to start anything, as Debian's policy has it, until apt-get is done.
APT_WITHOUT_SERVICES='policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ] || grep -q cognitora $policy; then
	trap "rm -f $policy" EXIT
	trap "exit 130" INT TERM HUP
	printf "#!/bin/sh\n# cognitora: for the time of an apt-get\nexit 101\n" >$policy
	chmod 755 $policy
fi
apt-get -qq -y --no-install-recommends -o APT::Status-Fd=3 -o Dpkg::Use-Pty=0 install "$@" 3>&1 >/dev/null'

# Show lines of APT's status, dlstatus:N:PERCENT:TEXT and pmstatus:PACKAGE:PERCENT:TEXT.
apt_steps() { awk -F: '/^(dl|pm)status:/ { printf "%d/100 %s\n", $3, $4; fflush() }' | show_steps "apt-get, percent of downloading, then of installing:"; }

install_packages() {
	command -v apt-get >/dev/null || die "this script installs with apt; on another system install what scripts/packages lists, then build with meson"
	case $(codename) in
	bookworm|trixie) ;;
	*) say "note: tested on Debian 12 and 13; this is $(codename)" ;;
	esac
	local want plain=() other suite
	mapfile -t want < <(missing_packages "$@")
	[ "${#want[@]}" = 0 ] && return 0
	step "installing with apt: ${want[*]}"
	mapfile -t plain < <(printf '%s\n' "${want[@]}" | grep -v /)
	for suite in $(printf '%s\n' "${want[@]}" | sed -n 's|.*/||p' | sort -u); do know_suite "$suite"; done
	as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq update || die "apt-get update failed: is there a network, and a Debian mirror in /etc/apt?"
	[ "${#plain[@]}" = 0 ] || apt_install "${plain[@]}"
	for suite in $(printf '%s\n' "${want[@]}" | grep / | sed 's|.*/||' | sort -u); do
		mapfile -t other < <(printf '%s\n' "${want[@]}" | sed -n "s|/$suite\$||p")
		apt_install -t "$suite" "${other[@]}"
	done
	mapfile -t want < <(missing_packages "$@")
	[ "${#want[@]}" = 0 ] || die "still missing after apt-get: ${want[*]}"
}

# show_steps NAME: read lines that begin with "[12/345]" or "12/345", as ninja and meson test write them, and show how far NAME is and how long the
# rest takes if it goes on as it went: on a terminal (stderr) one line that is replaced with each step, elsewhere a line every CGN_HEARTBEAT seconds
# (default 20), so that work that takes minutes can be told from work that hangs.
show_steps() {
	local line at='' done=0 total=0 said=$SECONDS began=$SECONDS every=${CGN_HEARTBEAT:-20} live='' columns=80 left
	if [ -t 2 ]; then live=1 every=1; columns=$(stty size </dev/tty 2>/dev/null | cut -d' ' -f2 || :); fi
	[ "${columns:-0}" -gt 20 ] || columns=80
	while :; do
		if IFS= read -r -t "$every" line; then
			[[ $line =~ ^[\ \[]*([0-9]+)/([0-9]+) ]] || continue
			at=$line done=${BASH_REMATCH[1]} total=${BASH_REMATCH[2]}
			[ -z "$live" ] || printf '\r\033[K%.*s' "$((columns - 1))" "$line" >&2
		elif [ $? -le 128 ]; then
			break # the end of the input; else a second without a line
		fi
		if [ -z "$live" ] && [ -n "$at" ] && [ $((SECONDS - said)) -ge "$every" ]; then
			left=
			[ $((done * 20)) -lt "$total" ] || left=", about $(((SECONDS - began) * (total - done) / done)) s left" # before, it would be a guess
			say "    $1 $done of $total, $((SECONDS - began)) s$left"
			said=$SECONDS
		fi
	done
	[ -z "$live" ] || printf '\r\033[K' >&2
}

# refuse_foreign_build DIR: end if the build folder was copied or moved: its files name the tree that it was made for, and ninja would compile that one.
refuse_foreign_build() {
	local names=$1/meson-info/meson-info.json key path want
	[ -f "$names" ] || return 0
	for key in source build; do
		path=$(sed -nE "s/.*\"$key\": \"(([^\"\\\\]|\\\\.)*)\".*/\1/p" "$names" | head -n 1)
		want=$1
		[ $key = build ] || want=$ROOT
		[ -z "$path" ] || [ "$path" -ef "$want" ] || die "$1 was made for $path: ninja would compile there. Remove the copy (rm -r $1) and start again"
	done
}

# build_tree DIR MESON-OPTION...: configure once, then compile TARGETS (unset: all). The compiler's output is shown only on failure.
build_tree() {
	local dir log
	refuse_foreign_build "$1"
	mkdir -p "$1"
	dir=$(cd "$1" && pwd) # The links in bin/ have its absolute path.
	log=$dir/build.log
	shift
	if [ ! -f "$dir/build.ninja" ]; then
		meson setup "$dir" "$ROOT" "$@" >"$log" 2>&1 || { tail -n 20 "$log" >&2; die "meson setup failed; the whole log: $log"; }
	fi
	# shellcheck disable=SC2086
	(set -o pipefail; NINJA_STATUS='[%f/%t] ' ninja -C "$dir" ${TARGETS:-} 2>&1 </dev/null | tee "$log" | show_steps "$(basename "$dir"), steps of the build") || { grep -E 'error|FAILED' "$log" | head -n 20 >&2; die "the build failed; the whole log: $log"; }
	mkdir -p "$dir/bin"
	ln -sf "$dir"/src/*/cgn-*[!p] "$dir/bin/"
}
