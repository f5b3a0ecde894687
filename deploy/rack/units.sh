# Do what the lines of standard input say: an order, and mostly a unit.
settle() { # UNIT: it needs no restart any more
	[ -f "$state/install.pending" ] || return 0
	grep -v -x -F "$1" "$state/install.pending" >"$state/.install.pending" || :
	mv -f "$state/.install.pending" "$state/install.pending"
}

failed() { # UNIT: say why, and end
	systemctl status --no-pager --lines=5 "$1" 2>&1 | tail -n 12 >&2 || :
	echo "unit $1 does not start: journalctl -u $1 says why" >&2
	exit 1
}

await() { # UNIT: wait until it is ready
	left=90
	while [ "$(systemctl is-active "$1" 2>/dev/null || :)" != active ]; do
		left=$((left - 1))
		[ "$left" -gt 0 ] || failed "$1"
		sleep 1
	done
}

while read -r order unit; do
	case $order in
	reload)
		if [ -f /etc/sysusers.d/cognitora.conf ] && command -v systemd-sysusers >/dev/null; then systemd-sysusers cognitora.conf; fi
		if [ -f /etc/tmpfiles.d/cognitora.conf ] && command -v systemd-tmpfiles >/dev/null; then systemd-tmpfiles --create cognitora.conf; fi
		systemctl daemon-reload
		;;
	enable) systemctl enable --quiet "$unit" ;;
	restart) systemctl restart "$unit" || failed "$unit"; settle "$unit" ;;
	begin) systemctl restart --no-block "$unit" || failed "$unit" ;;
	await) await "$unit"; settle "$unit" ;;
	disable) systemctl disable --quiet --now "$unit" ;;
	settled) rm -f "$state/install.pending" ;;
	esac
done
