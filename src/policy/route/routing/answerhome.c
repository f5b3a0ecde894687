/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/route/routing/answerhome.h"

#include <string.h>

#include "base/mix/mix.h"
#include "policy/route/routing/routing.h"

#define HOME_KEY UINT64_C(0x7265737073746f72) /* Where a tail has its node's hash. */

static bool is_space(char c)
{
	return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* Return the text of the string value that follows a key at the beginning of |rest|; p NULL: no plain string. */
static struct cgn_str value_text(struct cgn_str rest)
{
	size_t i = 0;
	while (i < rest.n && (is_space(rest.p[i]) || rest.p[i] == ':'))
		i++;
	if (i == rest.n || rest.p[i] != '"')
		return (struct cgn_str){NULL, 0};
	size_t from = ++i;
	while (i < rest.n && rest.p[i] != '"' && rest.p[i] != '\\' && i - from < ANSWERHOME_ID_MAX)
		i++;
	if (i == rest.n || rest.p[i] != '"')
		return (struct cgn_str){NULL, 0};
	return (struct cgn_str){rest.p + from, i - from};
}

struct cgn_str answerhome_id(struct cgn_str data)
{
	static const char key[] = "\"id\"", begins[] = "resp";
	size_t n = data.n < ANSWERHOME_WITHIN ? data.n : ANSWERHOME_WITHIN;
	const char *end = data.p + n, *at = data.p;
	while (n > 0 && (at = memmem(at, (size_t)(end - at), key, sizeof key - 1)) != NULL) {
		at += sizeof key - 1;
		struct cgn_str id = value_text((struct cgn_str){at, (size_t)(end - at)});
		if (id.n >= sizeof begins - 1 && memcmp(id.p, begins, sizeof begins - 1) == 0)
			return id;
	}
	return (struct cgn_str){NULL, 0};
}

static uint64_t home_place(struct answerhome_of of)
{
	return route_hash(of.id.p, of.id.n) ^ mix64(route_hash(of.model.p, of.model.n));
}

void answerhome_put(struct prompttail_table *t, struct answerhome_of of, uint16_t slot, uint64_t node)
{
	if (of.id.n == 0 || of.id.n > ANSWERHOME_ID_MAX)
		return;
	prompttail_put(t, home_place(of), HOME_KEY,
		(struct prompttail){.prompt = (uint64_t)slot + 1, .answer = node & UINT16_MAX});
}

struct answerhome answerhome_get(const struct prompttail_table *t, struct answerhome_of of)
{
	struct answerhome none = {.known = false};
	if (of.id.n == 0 || of.id.n > ANSWERHOME_ID_MAX)
		return none;
	struct prompttail found = prompttail_get(t, home_place(of), HOME_KEY);
	if (found.prompt == 0 || found.prompt > UINT16_MAX)
		return none;
	return (struct answerhome){true, (uint16_t)(found.prompt - 1), (uint16_t)found.answer};
}

bool answerhome_is(const struct answerhome *h, uint16_t slot, uint64_t node)
{
	return h->known && h->slot == slot && h->print == (uint16_t)(node & UINT16_MAX);
}
