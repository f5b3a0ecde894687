# head.sh: the begin of what cgn-ctl install baremetal runs on a host; state.sh, put.sh or units.sh follows. The first line
# of standard input is the folder of the files of the host, empty for /. Foreign text comes by standard input only. No
# single quotes: the whole text is one quoted word of a command line.
set -eu
umask 022
PATH=$PATH:/usr/sbin:/sbin
IFS= read -r root
state=$root/var/lib/cognitora
# Who may not write the files may not read all of them either, and the plan would be wrong.
[ -n "$root" ] || [ -w /etc ] || { echo "the user $(id -un) may not write /etc: give the host user = \"root\" or sudo = true in the inventory" >&2; exit 1; }
