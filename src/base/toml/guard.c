/* SPDX-License-Identifier: Apache-2.0 */
/* toml guard: count dots outside of strings and comments. Parses only as much TOML as needed to find their
 * ends. */
#include "base/toml/toml_priv.h"

struct guard {
	struct cgn_str rest;
	struct toml_place at;
	unsigned dots;
};

static void guard_eat(struct guard *g, size_t n)
{
	for (; n > 0 && g->rest.n > 0; n--, g->rest.p++, g->rest.n--) {
		if (*g->rest.p == '\n')
			g->at = (struct toml_place){g->at.line + 1, 1};
		else if (((unsigned char)*g->rest.p & 0xc0) != 0x80)
			g->at.column++;
	}
}

/* Skip a string, which begins with one of four quotes: '…', "…", '''…''', """…""". */
static void eat_string(struct guard *g)
{
	char quote = *g->rest.p;
	const char triple[4] = {quote, quote, quote, '\0'}, single[2] = {quote, '\0'};
	const char *fence = cgn_str_starts(g->rest, triple) ? triple : single;
	bool one_line = fence == single;
	guard_eat(g, strlen(fence));
	while (g->rest.n > 0 && !cgn_str_starts(g->rest, fence)) {
		if (one_line && *g->rest.p == '\n')
			return; /* toml++ will report this error. */
		guard_eat(g, quote == '"' && *g->rest.p == '\\' ? 2 : 1);
	}
	guard_eat(g, strlen(fence));
	for (int i = 0; i < 2 && !one_line && cgn_str_starts(g->rest, single); i++)
		guard_eat(g, 1); /* Quotes may stand directly before the closing quotes. */
}

static void eat_comment(struct guard *g)
{
	while (g->rest.n > 0 && *g->rest.p != '\n')
		guard_eat(g, 1);
}

/* A character that ends a key or a number restarts the count. */
static void eat_plain(struct guard *g)
{
	char c = *g->rest.p;
	if (c == '.')
		g->dots++;
	else if (c != ' ' && c != '\t' && strchr("\n=,[]{}", c) != NULL)
		g->dots = 0;
	guard_eat(g, 1);
}

bool toml_dots_are_few(struct cgn_str text, struct toml_place *where)
{
	struct guard g = {.rest = text, .at = {1, 1}};
	while (g.rest.n > 0 && g.dots <= TOML_MAX_DOTS) {
		*where = g.at;
		if (*g.rest.p == '"' || *g.rest.p == '\'')
			eat_string(&g);
		else if (*g.rest.p == '#')
			eat_comment(&g);
		else
			eat_plain(&g);
	}
	return g.dots <= TOML_MAX_DOTS;
}
