/* SPDX-License-Identifier: Apache-2.0 */
/* command: asks systemd, and reads numbers of files. */

#include "ctl/doctor/doctor.h"
#include "ctl/run.h"
#include "io/os/disk/disk.h"

#define MAX_ARGS 64

bool doctor_systemctl(struct doctor *d, const char *const *units, size_t n, const char *what,
	struct cgn_buf *out)
{
	static const char *const usual[] = {"systemctl"};
	const char *argv[MAX_ARGS + 1];
	const char *const *program = d->cfg != NULL ? d->cfg->agent.systemctl.v : usual;
	size_t at = 0, words = d->cfg != NULL ? d->cfg->agent.systemctl.n : 1;
	for (size_t i = 0; i < words && at < MAX_ARGS / 2; i++)
		argv[at++] = program[i];
	argv[at++] = "show";
	argv[at++] = "--no-pager";
	argv[at++] = what;
	for (size_t i = 0; i < n && at < MAX_ARGS; i++)
		argv[at++] = units[i];
	argv[at] = NULL;
	return ctl_run_read(argv, 5 * CGN_SEC, out) == 0;
}

bool doctor_number(const char *path, uint64_t *out)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	if (!cgn_ok(disk_read_file(path, 4096, &text, NULL)))
		return false;
	struct cgn_str rest = cgn_buf_view(&text);
	return cgn_str_u64(cgn_str_trim(cgn_str_split(&rest, '\n')), out);
}
