# Put the files of a tar into their places: files/..., record, pending (units to restart), remove (paths).
# Remove the folders above a path as far as they are empty.
prune() {
	folder=${1%/*}
	while [ -n "$folder" ] && rmdir "$root$folder" 2>/dev/null; do folder=${folder%/*}; done
}

place() { # PATH: put the file of that path from the stage into its place
	folder=$root${1%/*}
	if [ ! -d "$folder" ]; then
		mkdir -p "$folder"
		case $folder in */pki) chmod 0700 "$folder" ;; esac
	fi
	cp -p "files$1" "$folder/.cgn-install.new"
	mv -f "$folder/.cgn-install.new" "$root$1"
}

[ -d "$state" ] || mkdir -p -m 0750 "$state"
rm -rf "$state/.install"
mkdir -m 0700 "$state/.install"
cd "$state/.install"
tar -x -p --no-same-owner -f -
for program in files/usr/bin/*; do
	[ -e "$program" ] || continue
	"./$program" --version >/dev/null || { echo "${program#files} does not run on this host" >&2; exit 1; }
done
cp pending "$state/install.pending"
if [ -d files ]; then
	(cd files && find . -type f) | while IFS= read -r path; do place "${path#.}"; done
fi
while IFS= read -r path; do
	rm -f "$root$path"
	prune "$path"
done <remove
if [ -s record ]; then
	chmod 0644 record
	mv -f record "$state/install.sha256"
else
	rm -f "$state/install.sha256" "$state/install.pending"
fi
cd /
rm -rf "$state/.install"
rmdir "$state" 2>/dev/null || :
sync
