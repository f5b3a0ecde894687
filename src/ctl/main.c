/* SPDX-License-Identifier: Apache-2.0 */
/* cgn-ctl: the admin command line. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
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

/* Say where $PATH has a cgn-lab that cannot be executed, and why. */
static void lab_describe(int why, char *out, size_t cap)
{
	struct cgn_str rest = cgn_str_of(getenv("PATH") != NULL ? getenv("PATH") : "");
	char path[PATH_MAX];
	(void)snprintf(out, cap, "nor is it in $PATH");
	while (rest.n > 0 && why != ENOENT) {
		struct cgn_str folder = cgn_str_split(&rest, ':');
		(void)snprintf(path, sizeof path, "%.*s/cgn-lab", CGN_STR_ARG(folder));
		if (access(path, F_OK) != 0)
			continue;
		(void)snprintf(out, cap, "the one in $PATH cannot be executed: %s: %s", path, strerror(why));
		return;
	}
}

/* Become cgn-lab, which lies beside this program, else in $PATH. cgn-lab names itself in errors as this program was called, and
 * says if it is of another version than the one in the environment. */
static int lab_run(char **argv)
{
	char in_path[PATH_MAX + 100];
	char folder[PATH_MAX], path[PATH_MAX + sizeof "/cgn-lab"];
	(void)!cgn_ok(ctl_run_folder(folder, NULL));
	(void)snprintf(path, sizeof path, "%s/cgn-lab", folder);
	argv[1] = argv[0]; /* In the place of "bench". */
	(void)setenv(CTL_LAB_VERSION, CGN_VERSION, 1);
	(void)execv(path, argv + 1);
	int why = errno;
	(void)execvp("cgn-lab", argv + 1);
	lab_describe(errno, in_path, sizeof in_path);
	(void)fprintf(stderr,
		"cgn-ctl: bench needs the program cgn-lab, of the same package (cognitora-ctl): %s: %s; %s\n",
		path, strerror(why), in_path);
	return cgn_code_exit(CGN_NOT_FOUND);
}

int main(int argc, char **argv)
{
	static const struct ctl_program ctl = {.verbs = ctl_verbs,
		.n_verbs = CGN_COUNT(ctl_verbs),
		.hand_over = lab_run};
	return ctl_main(&ctl, argc, argv);
}
