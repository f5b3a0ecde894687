/* SPDX-License-Identifier: Apache-2.0 */
/* cgn-ctl: the admin command line. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ctl/ctl.h"
#include "ctl/run.h"

const struct ctl_verb ctl_verbs[] = {
#define VERB(path, arguments, run, summary, examples)  {path, arguments, summary, examples, run},
#define BENCH(path, arguments, run, summary, examples) {path, arguments, summary, examples, NULL},
#include "joint/ctl/line/verbs.def"
#undef VERB
#undef BENCH
};
const size_t ctl_n_verbs = CGN_COUNT(ctl_verbs);

/* Become cgn-lab, which lies beside this program, else in $PATH. cgn-lab names itself in errors as this program was called. */
static int lab_run(char **argv)
{
	char folder[PATH_MAX], path[PATH_MAX + sizeof "/cgn-lab"];
	(void)!cgn_ok(ctl_run_folder(folder, NULL));
	(void)snprintf(path, sizeof path, "%s/cgn-lab", folder);
	argv[1] = argv[0]; /* In the place of "bench". */
	(void)execv(path, argv + 1);
	int why = errno;
	(void)execvp("cgn-lab", argv + 1);
	(void)fprintf(stderr,
		"cgn-ctl: bench needs the program cgn-lab, of the same package (cognitora-ctl): %s: %s; nor is it in $PATH\n",
		path, strerror(why));
	return cgn_code_exit(CGN_NOT_FOUND);
}

int main(int argc, char **argv)
{
	static const struct ctl_program ctl = {.verbs = ctl_verbs,
		.n_verbs = CGN_COUNT(ctl_verbs),
		.hand_over = lab_run};
	return ctl_main(&ctl, argc, argv);
}
