/* SPDX-License-Identifier: Apache-2.0 */
/* cgn-lab: carries out the verbs of cgn-ctl bench, which hands over to it: cgn-lab VERB is cgn-ctl bench VERB. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "lab/trial/trial.h"
#include "lab/workload/workload.h"

static const struct ctl_verb verbs[] = {
#define VERB(path, arguments, run, summary, examples)
#define BENCH(path, arguments, run, summary, examples) {path, arguments, summary, examples, run},
#include "joint/ctl/line/verbs.def"
#undef VERB
#undef BENCH
};

/* Append the names that the verb takes as eviction policy or workload. */
static void put_names(const struct ctl_verb *v, struct cgn_buf *out)
{
	bool evicts = strcmp(v->path, "bench evict") == 0,
	     generates = ctl_takes_flag(v, "--generate") || strcmp(v->arguments, "KIND") == 0;
	cgn_buf_putz(out, evicts ? "\npolicies:\n" : "");
	for (enum trial_policy p = 0; evicts && p < TRIAL_POLICIES; p++)
		cgn_buf_fmt(out, "  %-26s %s\n", trial_text(p), trial_help(p));
	cgn_buf_putz(out, generates ? "\nworkloads:\n" : "");
	for (enum workload_kind k = 0; generates && k < WORKLOAD_KINDS; k++)
		cgn_buf_fmt(out, "  %-26s %s\n", workload_text(k), workload_help(k));
}

/* cgn-ctl of another version may be called with flags that this program does not have. */
static void version_compare(void)
{
	const char *ctl = getenv(CTL_LAB_VERSION);
	if (ctl != NULL && strcmp(ctl, CGN_VERSION) != 0)
		(void)fprintf(stderr,
			"cgn-lab: this is version %s, and cgn-ctl is of version %s: install both from one package (cognitora-ctl)\n",
			CGN_VERSION, ctl_shown(ctl));
	(void)unsetenv(CTL_LAB_VERSION);
}

int main(int argc, char **argv)
{
	static const struct ctl_program lab = {.verbs = verbs,
		.n_verbs = CGN_COUNT(verbs),
		.help_more = put_names};
	if (argc > 1 && strcmp(argv[1], "--version") == 0)
		return ctl_main(&lab, argc, argv);
	version_compare();
	/* The verbs begin with "bench". |argv| ends in NULL, which is copied too. */
	char **line = CGN_NEW_ARRAY(char *, (size_t)argc + 2);
	line[0] = argv[0];
	line[1] = (char[]){"bench"};
	memcpy(line + 2, argv + 1, (size_t)argc * sizeof *argv);
	int status = ctl_main(&lab, argc + 1, line);
	free(line);
	return status;
}
