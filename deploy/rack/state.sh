# Print what the host has: units, and of each file of standard input and of the record its sum, and its text unless it
# is a program or a key.
has_systemd() { [ -z "$root" ] && command -v systemctl >/dev/null; }

if has_systemd; then echo "systemd yes"; else echo "systemd no"; fi
if [ -x "$root/usr/bin/etcd" ]; then echo "etcd yes"; else echo "etcd no"; fi
for folder in "$root"/var/lib/etcd/*/member; do
	[ -d "$folder" ] || continue
	folder=${folder%/member}
	case $folder in *.left-*) ;; *) echo "etcd-data ${folder##*/}" ;; esac
done
if [ -f "$state/install.pending" ]; then echo interrupted; sed "s/^/pending /" "$state/install.pending"; fi
for unit in etcd cgn-kvcached cgn-router cgn-agent cgn-metrics; do
	if has_systemd; then
		enabled=$(systemctl is-enabled "$unit" 2>/dev/null) || :
		active=$(systemctl is-active "$unit" 2>/dev/null) || :
		echo "unit $unit ${enabled:-no} ${active:-no}"
	fi
done
{ cat; if [ -f "$state/install.sha256" ]; then cut -c67- "$state/install.sha256"; fi; } | LC_ALL=C sort -u | while IFS= read -r path; do
	file=$root$path
	[ -f "$file" ] || continue
	sum=$(sha256sum <"$file")
	printf "file %s %s\n" "${sum%% *}" "$path"
	case $path in *.key | /usr/bin/*) continue ;; esac
	size=$(wc -c <"$file")
	[ "$size" -le 1048576 ] || continue
	printf "text %d\n" "$size"
	head -c "$size" <"$file"
	printf "\n"
done
echo end
