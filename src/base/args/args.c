/* SPDX-License-Identifier: Apache-2.0 */
#include "base/args/args.h"

#include <string.h>

#define SHOWN 64 /* Characters of an argument in a message. */
#define NEAR  4  /* Edits beyond which a name is not similar. */

static const char *dashes_of(const char *name)
{
	return name[0] != '\0' && name[1] == '\0' ? "-" : "--";
}

static int shown_length(struct cgn_str s)
{
	return (int)(s.n < SHOWN ? s.n : SHOWN);
}

static bool row_find(const struct args_table *t, struct cgn_str name, size_t *row, struct args_flag *out)
{
	for (*row = 0; *row < t->n_rows; ++*row) {
		*out = t->row(t->user, *row);
		if (out->name != NULL && cgn_str_is(name, out->name))
			return true;
	}
	return false;
}

static CGN_RC unknown_flag(const struct args_table *t, struct cgn_str arg, struct cgn_str name,
	struct cgn_err *err)
{
	const char *nearest = NULL;
	/* A similar name has at least one character in common. */
	size_t best = name.n < NEAR ? name.n : NEAR;
	for (size_t i = 0; i < t->n_rows; i++) {
		const char *known = t->row(t->user, i).name;
		size_t d = known != NULL ? cgn_str_distance(name, cgn_str_of(known), best) : best;
		if (d < best) {
			best = d;
			nearest = known;
		}
	}
	if (nearest != NULL)
		return CGN_FAIL(err, INVALID, "unknown flag %.*s; did you mean %s%s?", shown_length(arg),
			arg.p, dashes_of(nearest), nearest);
	return CGN_FAIL(err, INVALID, "unknown flag %.*s; %s --help lists the flags", shown_length(arg),
		arg.p, t->program);
}

CGN_RC args_take(struct args *a, const struct args_table *t, struct args_given *out, struct cgn_err *err)
{
	struct args_flag f;
	const char *given = a->argv[a->at++];
	if (strcmp(given, "-h") == 0)
		given = "--help";
	bool is_flag = given[0] == '-' && given[1] != '\0';
	if (!is_flag && !t->takes_words)
		return CGN_FAIL(err, INVALID, "unexpected argument \"%.*s\"; %s --help lists the flags",
			SHOWN, given, t->program);
	*out = (struct args_given){.row = ARGS_WORD, .value = given};
	if (!is_flag)
		return CGN_OK;
	struct cgn_str rest = cgn_str_of(given), arg = cgn_str_split(&rest, '='), name = arg;
	size_t dashes = cgn_str_starts(arg, "--") ? 2 : 1;
	name = (struct cgn_str){arg.p + dashes, arg.n - dashes};
	if ((dashes == 1) != (name.n == 1) || !row_find(t, name, &out->row, &f))
		return unknown_flag(t, arg, name, err);
	out->value = rest.p;
	if (f.meta == NULL && rest.p != NULL)
		return CGN_FAIL(err, INVALID, "%.*s takes no value", CGN_STR_ARG(arg));
	if (f.meta == NULL || rest.p != NULL)
		return CGN_OK;
	if (args_end(a))
		return CGN_FAIL(err, INVALID, "%s needs a value: %s %s", given, given, f.meta);
	out->value = a->argv[a->at++];
	return CGN_OK;
}
