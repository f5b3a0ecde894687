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

join() { # UNIT CLUSTER MEMBERS: start a new member of an etcd that runs. Older data is of a member that has left
	data=/var/lib/etcd/$2
	systemctl stop "$1"
	if [ -d "$data" ]; then mv "$data" "$data.left-$(date +%Y%m%d%H%M%S)"; fi
	printf "ETCD_INITIAL_CLUSTER=%s\nETCD_INITIAL_CLUSTER_STATE=existing\n" "$3" >/run/cognitora-join.env
	if systemctl restart "$1"; then rm -f /run/cognitora-join.env; return; fi
	systemctl stop "$1" || : # else it would be started again, without that file
	rm -f /run/cognitora-join.env
	failed "$1"
}

while read -r order unit cluster members; do
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
	join) join "$unit" "$cluster" "$members"; settle "$unit" ;;
	disable) systemctl disable --quiet --now "$unit" ;;
	settled) rm -f "$state/install.pending" ;;
	esac
done
