/* SPDX-License-Identifier: Apache-2.0 */
/* help: usage texts, made from verbs.def and flags.def. */
#include <stdio.h>
#include <string.h>

#include "joint/ctl/line/line.h"
#include "policy/route/routing/routing.h"

bool ctl_in_group(const struct ctl_verb *v, const char *group)
{
	size_t n = strlen(group);
	return strncmp(v->path, group, n) == 0 && v->path[n] == ' ';
}

void ctl_help_verbs(const struct ctl_program *of, const char *group, struct cgn_buf *out)
{
	if (group == NULL)
		cgn_buf_putz(out,
			"cgn-ctl: administer a Cognitora cluster\n\nusage: cgn-ctl VERB [ARGUMENT] [--flag value]...\n\n");
	else
		cgn_buf_fmt(out, "usage: cgn-ctl %s VERB [ARGUMENT] [--flag value]...\n\n", group);
	for (size_t i = 0; i < of->n_verbs; i++) {
		const struct ctl_verb *v = &of->verbs[i];
		char left[64];
		if (group != NULL && !ctl_in_group(v, group))
			continue;
		(void)snprintf(left, sizeof left, "%s %s", v->path, v->arguments);
		cgn_buf_fmt(out, "  %-26s %s\n", left, v->summary);
	}
	cgn_buf_putz(out, "\ncgn-ctl VERB --help prints the flags and examples of a verb.\n");
	if (group == NULL)
		cgn_buf_putz(out,
			"Exit codes: 0 fine, 1 failed, 2 usage, 3 configuration, 4 not reachable, 5 TLS, 6 engine, 7 port in use, 8 storage, 9 not supported.\n");
}

static void put_examples(const char *text, struct cgn_buf *out)
{
	struct cgn_str rest = cgn_str_of(text);
	while (rest.p != NULL) {
		struct cgn_str line = cgn_str_split(&rest, '\n');
		cgn_buf_fmt(out, "  %.*s\n", CGN_STR_ARG(line));
	}
}

bool ctl_takes_flag(const struct ctl_verb *v, const char *flag)
{
	for (size_t i = 0; i < ctl_n_flags; i++)
		if (strcmp(ctl_flags[i].name, flag) == 0 && ctl_flag_fits(&ctl_flags[i], v))
			return true;
	return false;
}

/* Append the routing policies, if the verb takes any. */
static void put_policies(const struct ctl_verb *v, struct cgn_buf *out)
{
	/* The --policy of bench evict names eviction policies. */
	if (!ctl_takes_flag(v, "--policy") || strcmp(v->path, "bench evict") == 0)
		return;
	cgn_buf_fmt(out, "\npolicies:\n  %-26s the default (same as %s)\n", "kv",
		route_policy_text(ROUTE_KV));
	for (enum route_policy p = 0; p < ROUTE_POLICIES; p++)
		cgn_buf_fmt(out, "  %-26s %s\n", route_policy_text(p), route_policy_help(p));
}

void ctl_help_verb(const struct ctl_program *of, const struct ctl_verb *v, struct cgn_buf *out)
{
	cgn_buf_fmt(out, "%s\n\nusage: cgn-ctl %s %s%s[flags]\n\n", v->summary, v->path, v->arguments,
		v->arguments[0] != '\0' ? " " : "");
	for (size_t i = 0; i < ctl_n_flags; i++) {
		const struct ctl_flag *f = &ctl_flags[i];
		char left[64];
		if (!ctl_flag_fits(f, v))
			continue;
		(void)snprintf(left, sizeof left, "%s %s", f->name, f->meta != NULL ? f->meta : "");
		cgn_buf_fmt(out, "  %-26s %s", left, f->help);
		if (f->fallback != NULL && f->fallback[0] != '\0')
			cgn_buf_fmt(out, " (default: %s)", f->fallback);
		cgn_buf_char(out, '\n');
	}
	put_policies(v, out);
	if (of->help_more != NULL)
		of->help_more(v, out);
	cgn_buf_putz(out, "\nexamples:\n");
	put_examples(v->examples, out);
}
