/* SPDX-License-Identifier: Apache-2.0 */
/* help: usage texts and shell completion, made from verbs.def and flags.def. */
#include <stdio.h>
#include <string.h>

#include "ctl/ctl.h"
#include "lab/trial/trial.h"
#include "lab/workload/workload.h"
#include "policy/routing/routing.h"

void ctl_help_all(struct cgn_buf *out)
{
	cgn_buf_putz(out,
		"cgn-ctl: administer a Cognitora cluster\n\nusage: cgn-ctl VERB [ARGUMENT] [--flag value]...\n\n");
	for (size_t i = 0; i < ctl_n_verbs; i++) {
		const struct ctl_verb *v = &ctl_verbs[i];
		char left[64];
		(void)snprintf(left, sizeof left, "%s %s", v->path, v->arguments);
		cgn_buf_fmt(out, "  %-26s %s\n", left, v->summary);
	}
	cgn_buf_putz(out,
		"\ncgn-ctl VERB --help prints the flags and examples of a verb.\n"
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

static bool takes_flag(const struct ctl_verb *v, const char *flag)
{
	for (size_t i = 0; i < ctl_n_flags; i++)
		if (strcmp(ctl_flags[i].name, flag) == 0 && ctl_flag_fits(&ctl_flags[i], v))
			return true;
	return false;
}

/* Append the names that the verb accepts as policy or workload, with their help. */
static void put_choices(const struct ctl_verb *v, struct cgn_buf *out)
{
	/* The --policy of bench evict names eviction policies, of all other verbs routing policies. */
	bool evicts = strcmp(v->path, "bench evict") == 0;
	bool policies = takes_flag(v, "--policy") && !evicts,
	     workloads = takes_flag(v, "--generate") || strcmp(v->arguments, "KIND") == 0;
	if (policies)
		cgn_buf_fmt(out, "\npolicies:\n  %-26s the default (same as %s)\n", "kv",
			route_policy_text(ROUTE_KV));
	for (enum route_policy p = 0; policies && p < ROUTE_POLICIES; p++)
		cgn_buf_fmt(out, "  %-26s %s\n", route_policy_text(p), route_policy_help(p));
	if (evicts)
		cgn_buf_putz(out, "\npolicies:\n");
	for (enum trial_policy p = 0; evicts && p < TRIAL_POLICIES; p++)
		cgn_buf_fmt(out, "  %-26s %s\n", trial_text(p), trial_help(p));
	if (workloads)
		cgn_buf_putz(out, "\nworkloads:\n");
	for (enum workload_kind k = 0; workloads && k < WORKLOAD_KINDS; k++)
		cgn_buf_fmt(out, "  %-26s %s\n", workload_text(k), workload_help(k));
}

void ctl_help_verb(const struct ctl_verb *v, struct cgn_buf *out)
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
	put_choices(v, out);
	cgn_buf_putz(out, "\nexamples:\n");
	put_examples(v->examples, out);
}

CGN_RC ctl_version(const struct ctl_args *a, struct cgn_err *err)
{
	struct cgn_buf out = {0};
	cgn_buf_fmt(&out, a->json ? "{\"version\":\"%s\"}\n" : "cgn-ctl %s\n", CGN_VERSION);
	return ctl_print(&out, err);
}

/* Append the flags of a verb, each after a space. */
static void flag_words(const struct ctl_verb *v, struct cgn_buf *out)
{
	for (size_t i = 0; i < ctl_n_flags; i++)
		if (ctl_flag_fits(&ctl_flags[i], v))
			cgn_buf_fmt(out, " %s", ctl_flags[i].name);
}

/* Append the second words after |first|; for NULL, each first word once. */
static void next_words(const char *first, struct cgn_buf *out)
{
	const char *last = "";
	size_t last_n = 0;
	for (size_t i = 0; i < ctl_n_verbs; i++) {
		struct cgn_str rest = cgn_str_of(ctl_verbs[i].path);
		struct cgn_str head = cgn_str_split(&rest, ' ');
		if (first != NULL && cgn_str_is(head, first) && rest.p != NULL)
			cgn_buf_fmt(out, " %.*s", CGN_STR_ARG(rest));
		if (first == NULL && !cgn_str_eq(head, (struct cgn_str){last, last_n}))
			cgn_buf_fmt(out, " %.*s", CGN_STR_ARG(head));
		last = head.p;
		last_n = head.n;
	}
}

static void bash_cases(struct cgn_buf *out)
{
	for (size_t i = 0; i < ctl_n_verbs; i++) {
		struct cgn_buf flags = {0};
		flag_words(&ctl_verbs[i], &flags);
		cgn_buf_fmt(out, "\t\"%s\"*) words=\"%s\" ;;\n", ctl_verbs[i].path, cgn_buf_z(&flags) + 1);
		cgn_buf_fini(&flags);
	}
}

/* The verbs of a group are consecutive in the table. */
static void bash_groups(struct cgn_buf *out)
{
	char group[32] = "";
	for (size_t i = 0; i < ctl_n_verbs; i++) {
		struct cgn_str rest = cgn_str_of(ctl_verbs[i].path), first = cgn_str_split(&rest, ' ');
		if (rest.p == NULL || cgn_str_is(first, group))
			continue;
		struct cgn_buf seconds = {0};
		(void)cgn_str_copyz(group, sizeof group, first);
		next_words(group, &seconds);
		cgn_buf_fmt(out, "\t\"%s\") words=\"%s\" ;;\n", group, cgn_buf_z(&seconds) + 1);
		cgn_buf_fini(&seconds);
	}
}

static void complete_bash(struct cgn_buf *out)
{
	struct cgn_buf firsts = {0};
	next_words(NULL, &firsts);
	cgn_buf_fmt(out,
		"_cgn_ctl() {\n\tlocal line=\"${COMP_WORDS[*]:1:COMP_CWORD-1}\" words=\"\"\n\tcase \"$line\" in\n\t\"\") words=\"%s\" ;;\n",
		cgn_buf_z(&firsts) + 1);
	cgn_buf_fini(&firsts);
	bash_groups(out);
	bash_cases(out);
	cgn_buf_putz(out,
		"\tesac\n\tcase \"$line\" in\n\t\"recipe show\"*|\"recipe up\"*|\"recipe down\"*)\n"
		"\t\twords=\"$words $(cgn-ctl recipe ls 2>/dev/null | awk 'NR > 1 { print $1 }')\" ;;\n\tesac\n"
		"\tmapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"${COMP_WORDS[COMP_CWORD]}\")\n}\ncomplete -o default -F _cgn_ctl cgn-ctl\n");
}

static void complete_zsh(struct cgn_buf *out)
{
	cgn_buf_putz(out, "#compdef cgn-ctl\nautoload -U +X bashcompinit && bashcompinit\n");
	complete_bash(out);
}

static void fish_flags(const struct ctl_verb *v, struct cgn_str first, struct cgn_str second,
	struct cgn_buf *out)
{
	for (size_t i = 0; i < ctl_n_flags; i++) {
		const struct ctl_flag *f = &ctl_flags[i];
		if (!ctl_flag_fits(f, v))
			continue;
		cgn_buf_fmt(out, "complete -c cgn-ctl -n '__fish_seen_subcommand_from %.*s",
			CGN_STR_ARG(first));
		if (second.p != NULL)
			cgn_buf_fmt(out, "; and __fish_seen_subcommand_from %.*s", CGN_STR_ARG(second));
		cgn_buf_fmt(out, "' %s %s %s\n", f->name[1] == '-' ? "-l" : "-s",
			f->name + (f->name[1] == '-' ? 2 : 1), f->meta != NULL ? "-r" : "");
	}
}

static void complete_fish(struct cgn_buf *out)
{
	cgn_buf_putz(out, "complete -c cgn-ctl -f\n");
	for (size_t i = 0; i < ctl_n_verbs; i++) {
		const struct ctl_verb *v = &ctl_verbs[i];
		struct cgn_str rest = cgn_str_of(v->path);
		struct cgn_str first = cgn_str_split(&rest, ' ');
		cgn_buf_fmt(out, "complete -c cgn-ctl -n __fish_use_subcommand -a %.*s\n",
			CGN_STR_ARG(first));
		if (rest.p != NULL)
			cgn_buf_fmt(out,
				"complete -c cgn-ctl -n '__fish_seen_subcommand_from %.*s' -a %.*s -d \"%s\"\n",
				CGN_STR_ARG(first), CGN_STR_ARG(rest), v->summary);
		fish_flags(v, first, rest, out);
	}
}

CGN_RC ctl_completion(const struct ctl_args *a, struct cgn_err *err)
{
	static const struct {
		const char *shell;
		void (*print)(struct cgn_buf *out);
	} shells[] = {{"bash", complete_bash}, {"zsh", complete_zsh}, {"fish", complete_fish}};
	for (size_t i = 0; i < CGN_COUNT(shells); i++) {
		struct cgn_buf out = {0};
		if (strcmp(a->words[0], shells[i].shell) != 0)
			continue;
		shells[i].print(&out);
		return ctl_print(&out, err);
	}
	return CGN_FAIL(err, INVALID, "there is no completion for '%s', only for bash, zsh and fish",
		a->words[0]);
}
