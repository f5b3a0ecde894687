/* SPDX-License-Identifier: Apache-2.0 */
#include "joint/ctl/line/line.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/args/args.h"
#include "policy/config/config.h"

const struct ctl_flag ctl_flags[] = {
#define FLAG(verb, name, meta, fallback, help) {verb, name, meta, fallback, help},
#include "joint/ctl/line/flags.def"
#undef FLAG
};
const size_t ctl_n_flags = CGN_COUNT(ctl_flags);

#define EXIT_USAGE 2

bool ctl_flag_fits(const struct ctl_flag *f, const struct ctl_verb *v)
{
	size_t n = strlen(f->verb);
	if (f->verb[0] == '=')
		return strcmp(f->verb + 1, v->path) == 0;
	return strncmp(f->verb, v->path, n) == 0 && (n == 0 || v->path[n] == '\0' || v->path[n] == ' ');
}

static const struct ctl_flag *flag_of(const struct ctl_verb *v, struct cgn_str name)
{
	for (size_t i = 0; i < ctl_n_flags; i++)
		if (ctl_flag_fits(&ctl_flags[i], v) && cgn_str_is(name, ctl_flags[i].name))
			return &ctl_flags[i];
	return NULL;
}

static const struct ctl_flag *own_flag(const struct ctl_args *a, const char *name)
{
	const struct ctl_flag *f = flag_of(a->verb, cgn_str_of(name));
	CGN_MUST(f != NULL);
	return f;
}

const char *ctl_flag_nth(const struct ctl_args *a, const char *name, size_t i)
{
	const struct ctl_flag *f = own_flag(a, name);
	for (size_t k = 0; k < a->n_given; k++)
		if (a->given[k].flag == f && i-- == 0)
			return a->given[k].value;
	return NULL;
}

const char *ctl_flag(const struct ctl_args *a, const char *name)
{
	const struct ctl_flag *f = own_flag(a, name);
	for (size_t k = a->n_given; k-- > 0;)
		if (a->given[k].flag == f)
			return a->given[k].value;
	return f->fallback;
}

bool ctl_switch(const struct ctl_args *a, const char *name)
{
	return ctl_flag_nth(a, name, 0) != NULL;
}

CGN_RC ctl_flag_u64(const struct ctl_args *a, const char *name, uint64_t min, uint64_t max, uint64_t *out,
	struct cgn_err *err)
{
	const char *text = ctl_flag(a, name);
	uint64_t v = 0;
	if (text == NULL || !cgn_str_u64(cgn_str_of(text), &v) || v < min || v > max)
		return CGN_FAIL(err, INVALID, "%s takes a whole number from %llu to %llu, not '%s'", name,
			(unsigned long long)min, (unsigned long long)max, text != NULL ? text : "");
	*out = v;
	return CGN_OK;
}

CGN_RC ctl_flag_duration(const struct ctl_args *a, const char *name, cgn_nsec *out, struct cgn_err *err)
{
	const char *text = ctl_flag(a, name);
	if (!config_duration(cgn_str_of(text), out))
		return CGN_FAIL(err, INVALID, "%s takes a duration like 250ms, 5s or 2m, not '%s'", name,
			text);
	return CGN_OK;
}

CGN_RC ctl_flag_u64s(const struct ctl_args *a, const char *name, uint64_t min, uint64_t max, uint64_t *out,
	size_t room, size_t *n, struct cgn_err *err)
{
	const char *list = ctl_flag(a, name);
	struct cgn_str rest = cgn_str_of(list);
	for (*n = 0; rest.p != NULL; ++*n) {
		struct cgn_str word = cgn_str_trim(cgn_str_split(&rest, ','));
		if (*n == room || !cgn_str_u64(word, &out[*n]) || out[*n] < min || out[*n] > max)
			return CGN_FAIL(err, INVALID,
				"%s takes up to %zu numbers from %llu to %llu, separated by commas, not '%.100s'",
				name, room, (unsigned long long)min, (unsigned long long)max, list);
	}
	return CGN_OK;
}

/* Find the verb named by the first words: "recipe up" before "recipe". */
static const struct ctl_verb *verb_of(const struct ctl_program *of, int argc, char **argv, int *used)
{
	char two[128];
	for (int words = 2; words >= 1; words--) {
		if (argc <= words)
			continue;
		(void)snprintf(two, sizeof two, words == 2 ? "%s %s" : "%s", argv[1],
			argc > 2 ? argv[2] : "");
		for (size_t i = 0; i < of->n_verbs; i++)
			if (strcmp(two, of->verbs[i].path) == 0) {
				*used = words;
				return &of->verbs[i];
			}
	}
	return NULL;
}

static struct args_flag row_at(const void *verb, size_t i)
{
	const struct ctl_flag *f = &ctl_flags[i];
	if (!ctl_flag_fits(f, verb))
		return (struct args_flag){NULL, NULL};
	return (struct args_flag){f->name + strspn(f->name, "-"), f->meta};
}

static CGN_RC flag_add(struct ctl_args *a, const struct args_given *given, struct cgn_err *err)
{
	if (a->n_given == CTL_MAX_FLAGS)
		return CGN_FAIL(err, INVALID, "more than %d flags", CTL_MAX_FLAGS);
	a->given[a->n_given].flag = &ctl_flags[given->row];
	a->given[a->n_given++].value = given->value != NULL ? given->value : "";
	return CGN_OK;
}

static CGN_RC word_add(struct ctl_args *a, const char *word, struct cgn_err *err)
{
	if (a->n_words == CTL_MAX_WORDS)
		return CGN_FAIL(err, INVALID, "more than %d words", CTL_MAX_WORDS);
	a->words[a->n_words++] = word;
	return CGN_OK;
}

/* Check the number of positional arguments: words in brackets are optional, "..." allows many. */
static CGN_RC check_words(const struct ctl_args *a, struct cgn_err *err)
{
	const char *wanted = a->verb->arguments;
	size_t most = wanted[0] != '\0', least = most && wanted[0] != '[';
	if (strstr(wanted, "...") != NULL)
		most = CTL_MAX_WORDS;
	if (a->n_words < least)
		return CGN_FAIL(err, INVALID, "usage: cgn-ctl %s %s", a->verb->path, wanted);
	if (a->n_words > most)
		return CGN_FAIL(err, INVALID, "unexpected argument '%s'; usage: cgn-ctl %s %s",
			a->words[most], a->verb->path, wanted);
	return CGN_OK;
}

static CGN_RC line_parse(struct ctl_args *a, struct args line, struct cgn_err *err)
{
	char program[64];
	(void)snprintf(program, sizeof program, "cgn-ctl %s", a->verb->path);
	const struct args_table table = {.program = program,
		.takes_words = true,
		.n_rows = ctl_n_flags,
		.row = row_at,
		.user = a->verb};
	while (!args_end(&line)) {
		struct args_given given;
		CGN_TRY(args_take(&line, &table, &given, err));
		if (given.row == ARGS_WORD)
			CGN_TRY(word_add(a, given.value, err));
		else
			CGN_TRY(flag_add(a, &given, err));
	}
	const char *output = ctl_flag(a, "-o");
	a->json = strcmp(output, "json") == 0;
	a->wide = strcmp(output, "wide") == 0;
	if (!a->json && !a->wide && strcmp(output, "table") != 0)
		return CGN_FAIL(err, INVALID, "-o takes table, wide or json, not '%s'", output);
	return ctl_switch(a, "--help") ? CGN_OK : check_words(a, err);
}

static bool is_group(const struct ctl_program *of, const char *word)
{
	for (size_t i = 0; i < of->n_verbs; i++)
		if (ctl_in_group(&of->verbs[i], word))
			return true;
	return false;
}

static bool asks_help(const char *word)
{
	return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0;
}

/* Without a known verb, print the help if asked for, else an error and the verbs. */
static int no_verb(const struct ctl_program *of, int argc, char **argv)
{
	struct cgn_buf text = {0};
	const char *group = argc > 1 && is_group(of, argv[1]) ? argv[1] : NULL;
	bool asked = argc > 1 && asks_help(argv[group != NULL && argc > 2 ? 2 : 1]);
	if (argc > 1 && strcmp(argv[1], "--version") == 0) {
		(void)printf("%s %s\n", program_invocation_short_name, CGN_VERSION);
		return 0;
	}
	if (argc > 1 && !asked)
		(void)fprintf(stderr,
			group == NULL      ? "%s: there is no verb '%s'; the verbs are:\n\n"
				: argc > 2 ? "%s: '%s' has no verb '%s'; the verbs are:\n\n"
					   : "%s: '%s' needs a second word; the verbs are:\n\n",
			program_invocation_short_name, argv[1], argc > 2 ? argv[2] : "");
	ctl_help_verbs(of, group, &text);
	(void)fputs(cgn_buf_z(&text), asked ? stdout : stderr);
	cgn_buf_fini(&text);
	return asked ? 0 : EXIT_USAGE;
}

int ctl_main(const struct ctl_program *of, int argc, char **argv)
{
	(void)signal(SIGPIPE, SIG_IGN);
	int used = 0;
	const struct ctl_verb *v = verb_of(of, argc, argv, &used);
	if (v == NULL)
		return no_verb(of, argc, argv);
	if (v->run == NULL)
		return of->hand_over(argv);
	struct ctl_args a = {.verb = v};
	struct cgn_err err = {0};
	if (!cgn_ok(line_parse(&a, (struct args){argc, argv, used + 1}, &err))) {
		(void)fprintf(stderr, "%s: %s\nsee cgn-ctl %s --help\n", program_invocation_short_name,
			ctl_shown(err.msg), v->path);
		return EXIT_USAGE;
	}
	if (ctl_switch(&a, "--help")) {
		struct cgn_buf text = {0};
		ctl_help_verb(of, v, &text);
		return cgn_ok(ctl_print(&text, &err)) ? 0 : 1;
	}
	cgn_rc rc = v->run(&a, &err);
	if (cgn_ok(rc))
		return 0;
	if (err.msg[0] != '\0')
		(void)fprintf(stderr, "%s: %s\n", program_invocation_short_name, ctl_shown(err.msg));
	/* INVALID means a usage error, except for config check, where it means a wrong configuration. */
	bool misused = rc.code == CGN_INVALID && strcmp(v->path, "config check") != 0;
	return misused ? EXIT_USAGE : cgn_code_exit(rc.code);
}
