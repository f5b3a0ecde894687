/* SPDX-License-Identifier: Apache-2.0 */
/* limits: the rates, budgets and way through cascades of one key. */
#include <stdlib.h>
#include <string.h>

#include "auth_priv.h"

#define RATE_MOST 1000000 /* Requests a second, as of router.rate_limit. */

static CGN_RC rps_read(struct cgn_str value, struct auth_limits *l, struct cgn_err *err)
{
	char text[32] = "", *end = text;
	bool is_number = value.n > 0 && cgn_str_copyz(text, sizeof text, value) &&
		strspn(text, "0123456789.") == value.n;
	double rate = is_number ? strtod(text, &end) : -1;
	if (*end != '\0' || !(rate >= 0.001 && rate <= RATE_MOST))
		return CGN_FAIL(err, INVALID, "rps takes a number from 0.001 to %d", RATE_MOST);
	l->rps_thousandths = (uint64_t)(rate * 1000 + 0.5);
	return CGN_OK;
}

static CGN_RC tokens_read(struct cgn_str value, struct auth_limits *l, struct cgn_err *err)
{
	uint64_t n = 0;
	if (!cgn_str_u64(value, &n) || n == 0 || n > UINT32_MAX)
		return CGN_FAIL(err, INVALID, "tokens_per_minute takes a number from 1 to %u", UINT32_MAX);
	l->tokens_per_minute = (uint32_t)n;
	return CGN_OK;
}

static CGN_RC cascade_read(struct cgn_str value, struct auth_limits *l, struct cgn_err *err)
{
	static const char *const ways[] = {"off", "only-small"};
	for (size_t i = 0; i < CGN_COUNT(ways); i++)
		if (cgn_str_is(value, ways[i]))
			l->cascade = ways[i];
	if (l->cascade == NULL)
		return CGN_FAIL(err, INVALID,
			"cascade takes off (no smaller model is asked) or only-small (no larger one is)");
	return CGN_OK;
}

static CGN_RC limit_read(struct cgn_str one, struct auth_limits *l, struct cgn_err *err)
{
	struct cgn_str value = one, name = cgn_str_split(&value, '=');
	if (value.p == NULL)
		return budget_set_add(&l->budgets, one, err);
	if (cgn_str_is(name, "rps") && l->rps_thousandths == 0)
		return rps_read(value, l, err);
	if (cgn_str_is(name, "tokens_per_minute") && l->tokens_per_minute == 0)
		return tokens_read(value, l, err);
	if (cgn_str_is(name, "cascade") && l->cascade == NULL)
		return cascade_read(value, l, err);
	return CGN_FAIL(err, INVALID,
		"limits are rps=N, tokens_per_minute=N, cascade=off|only-small, each once, and budgets such as 5USD/day, not \"%.*s\"",
		(int)(one.n < 60 ? one.n : 60), one.p);
}

CGN_RC auth_limits_parse(struct cgn_str text, struct auth_limits *out, struct cgn_err *err)
{
	struct cgn_str rest = text;
	*out = (struct auth_limits){0};
	if (text.n > AUTH_LIMITS_MAX)
		return CGN_FAIL(err, INVALID, "the limits have more than %d bytes", AUTH_LIMITS_MAX);
	for (size_t i = 0; i < text.n; i++)
		if (text.p[i] <= ' ' || text.p[i] > '~')
			return CGN_FAIL(err, INVALID,
				"limits are visible characters without spaces, with commas between them");
	while (rest.p != NULL && text.n > 0)
		CGN_TRY(limit_read(cgn_str_split(&rest, ','), out, err));
	return CGN_OK;
}
